"""`manage.py completion`: what a real shell makes of it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from jimsite.completion import commands, own_commands, script
from tests.commands import said

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


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["jim", "runsch"], ["runschedule", "runscheduler"]),
        (["jim", "runschedule", "--w"], ["--wait"]),
        (["jim", "runschedule", "night"], [r"Nightly\ HR\ Sync", r"Night\ watch"]),
        (["jim", "runschedule", r"Nightly\ h"], [r"Nightly\ HR\ Sync"]),
        (["jim", "pause", "Backup", "ada"], [r"Ada\'s\ report"]),
        (["jim", "cancel", "--schedule", "b"], ["Backup"]),
        (["jim", "cancel", "b"], []),
        (["jim", "nonsense", "b"], []),
        (["manage.py", "desc"], ["describe"]),
    ],
)
def test_what_is_offered(written: Path, words: list[str], offered: list[str]) -> None:
    assert completed(written, *words) == offered


def test_python_is_completed_only_for_this(written: Path) -> None:
    assert completed(written, "python", "manage.py", "desc", function="_jim_python") == ["describe"]
    assert completed(written, "python", "other.py", "desc", function="_jim_python") == []


def test_every_command_is_known_with_its_options() -> None:
    known = commands()
    assert {"schedules", "runschedule", "doctor", "nexttimes", "runworker", "migrate"} <= set(known)
    assert set(own_commands()) < set(known)
    assert "--cancel-on-interrupt" in known["runschedule"].options
    for name in ("why", "pause", "backfill", "exportschedules"):
        assert known[name].takes_schedule


def test_it_is_printed_for_both_shells() -> None:
    assert said("completion", "bash")[0] == "# Completion of JIM's commands for bash."
    assert "bashcompinit" in "\n".join(said("completion", "zsh"))
    assert "complete -o default -F _jim manage.py jobs" in said("completion", "bash", "--program", "jobs")
