"""`manage.py completion`: what a real shell makes of it."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jimsite.completion import script
from tests.commands import said
from tests.waiting import PATIENCE_SECONDS

# As if JIM had answered; asking it takes a process of its own.
NAMES = "_jim_names() { printf '%s\\n' 'Nightly HR Sync' 'Night watch' \"Ada's report\" 'Backup'; }"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "jim.bash"
    path.write_text(f"{script('bash', program='jim')}\n{NAMES}\n")
    return path


def completed(path: Path, *words: str, function: str = "_jim") -> list[str]:
    """What bash offers for the last of these words."""
    line = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}"
    ask = f'source {path}; {line}; {function}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


def test_what_is_offered(written: Path) -> None:
    wanted = {
        ("jim", "runsch"): ["runschedule", "runscheduler"],
        ("jim", "runschedule", "--w"): ["--wait"],
        ("jim", "runschedule", "night"): [r"Nightly\ HR\ Sync", r"Night\ watch"],
        ("jim", "runschedule", r"Nightly\ h"): [r"Nightly\ HR\ Sync"],
        ("jim", "pause", "Backup", "ada"): [r"Ada\'s\ report"],
        ("jim", "cancel", "--schedule", "b"): ["Backup"],
        ("jim", "cancel", "b"): [],
        ("jim", "limit", ""): ["list", "set", "delete"],
        ("jim", "limit", "se"): ["set"],
        ("jim", "limit", "list"): ["list"],
        ("jim", "limit", "set", "--n"): ["--note"],
        ("jim", "limit", "nonsense", "--n"): [],
        ("jim", "close", "b"): ["Backup"],
        ("jim", "webhook", "add", "--schedule", "b"): ["Backup"],
        ("manage.py", "task", "pri"): ["prioritise"],
        ("jim", "nonsense", "b"): [],
        ("manage.py", "desc"): ["describe"],
    }
    assert {words: completed(written, *words) for words in wanted} == wanted
    # Python is completed only for this.
    assert completed(written, "python", "manage.py", "desc", function="_jim_python") == ["describe"]
    assert completed(written, "python", "manage.py", "limit", "se", function="_jim_python") == ["set"]
    assert completed(written, "python", "other.py", "desc", function="_jim_python") == []


class Zsh:
    """A person at a real zsh, without settings of their own."""

    SETUP = r"""
        unsetopt beep list_beep list_ambiguous auto_menu; PS1=''; autoload -U compinit && compinit -u -D
        shown() { print -r -- "<typed>$BUFFER</typed>"; BUFFER='' }; zle -N shown; bindkey '^X' shown
    """

    def __init__(self, path: Path) -> None:
        self.terminal, theirs = pty.openpty()
        env = os.environ | {"TERM": "dumb", "COLUMNS": "200", "LINES": "50"}
        self.process = subprocess.Popen(
            ["zsh", "-f", "-i"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            cwd=path.parent,
            start_new_session=True,
        )
        os.close(theirs)
        setup = path.with_name("setup.zsh")
        setup.write_text(f"{self.SETUP}\nsource {path}\nprint ready\n")
        os.write(self.terminal, f"source {setup}\n".encode())
        self._read("ready\r")

    def completed(self, line: str) -> tuple[str, list[str]]:
        """What becomes of the line after a tab, and what is offered where there are several ways to go on."""
        os.write(self.terminal, f"{line}\t\x18".encode())
        shown, _, rest = self._read("</typed>").rpartition("<typed>")
        typed = rest.removesuffix("</typed>")
        listed = [each.strip() for each in re.split(r"\s{2,}|\r?\n", shown.partition("\n")[2])]
        return typed, [each for each in listed if each not in ("", typed)]

    def close(self) -> None:
        os.write(self.terminal, b"exit\n")
        self.process.wait(PATIENCE_SECONDS)
        os.close(self.terminal)

    def _read(self, until: str) -> str:
        text, deadline = "", time.monotonic() + PATIENCE_SECONDS
        while until not in text:
            assert time.monotonic() < deadline, text
            if select.select([self.terminal], [], [], 1)[0]:
                text += os.read(self.terminal, 65_536).decode()
        return text[: text.index(until) + len(until)]


@pytest.fixture(scope="module")
def zsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zsh]:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    path = tmp_path_factory.mktemp("completion") / "jim.zsh"
    path.write_text(f"{script('zsh', program='jim')}\n{NAMES}\n")
    (path.parent / "beside.txt").touch()
    shell = Zsh(path)
    yield shell
    shell.close()


def test_what_zsh_makes_of_it(zsh: Zsh) -> None:
    wanted: dict[str, tuple[str, list[str]]] = {
        "jim runsch": ("jim runschedule", ["runschedule", "runscheduler"]),
        "jim runschedule --w": ("jim runschedule --wait ", []),
        "jim runschedule night": ("jim runschedule Night", [r"Night\ watch", r"Nightly\ HR\ Sync"]),
        r"jim runschedule Nightly\ h": (r"jim runschedule Nightly\ HR\ Sync ", []),
        'jim runschedule "nightly': ('jim runschedule "Nightly HR Sync" ', []),
        "jim pause Backup ada": (r"jim pause Backup Ada\'s\ report ", []),
        "jim cancel --schedule b": ("jim cancel --schedule Backup ", []),
        "jim cancel b": ("jim cancel beside.txt ", []),
        "jim limit se": ("jim limit set ", []),
        "jim limit set --n": ("jim limit set --note ", []),
        "jim webhook add --schedule b": ("jim webhook add --schedule Backup ", []),
        "manage.py desc": ("manage.py describe ", []),
        "python manage.py desc": ("python manage.py describe ", []),
        "python other.py desc": ("python other.py desc", []),
    }
    assert {line: zsh.completed(line) for line in wanted} == wanted


def test_it_is_printed_for_a_program_of_any_name() -> None:
    assert "compdef _jim manage.py jobs" in said("completion", "zsh", "--program", "jobs")
    assert "complete -o default -F _jim manage.py jobs" in said("completion", "bash", "--program", "jobs")
