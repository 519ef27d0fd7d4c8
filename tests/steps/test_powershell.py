"""PowerShell scripts: by the pwsh of this machine if it has one, and always by a stand-in."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from execution.children.nursery import Nursery
from execution.steps import powershell, programs
from execution.steps.context import Work
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from execution.steps.step_type import get
from tests.steps import pwsh_stand_in
from tests.steps.stage import Recorder, Running, work
from tests.steps.test_config import refuses
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.live

Script = Callable[..., str]
HERE = socket.gethostname()
REAL = shutil.which("pwsh", path=programs.SEARCH_PATH)


@pytest.fixture(params=["stand-in", *(["real"] if REAL else [])])
def pwsh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "real":
        assert REAL is not None
        path = REAL
    else:
        path = program(tmp_path, f'exec {sys.executable} {pwsh_stand_in.__file__} "$@"')
    with override_settings(JIM_PWSH=path):
        yield path


@pytest.fixture(autouse=True)
def ps1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Script:
    """Makes a script in a folder that scripts may come from."""

    def make(body: str, name: str = "script.ps1") -> str:
        path = tmp_path / "scripts" / name
        path.write_text(body)
        return str(path)

    monkeypatch.setattr(powershell, "PROBE_SECONDS", PATIENCE_SECONDS)
    (tmp_path / "scripts").mkdir()
    settings.JIM_EXECUTABLE_FOLDERS, settings.JIM_DATA_DIR = [tmp_path / "scripts"], tmp_path / "data"
    return make


def program(folder: Path, body: str) -> str:
    path = folder / "pwsh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def step(script: str, *arguments: str, **rest: Any) -> Work:
    return work("powershell", {"script": script, "arguments": list(arguments), **rest})


def run(nursery: Nursery, script: str, *arguments: str, **rest: Any) -> tuple[Outcome, Recorder]:
    sink = Recorder()
    return perform(step(script, *arguments, **rest), sink, nursery=nursery), sink


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", ""),
        ('throw "it broke"', "exit code 1"),
        ("& /bin/sh -c 'exit 7'\nexit $LASTEXITCODE", "exit code 7"),
        ("& /bin/sh -c 'kill -9 $PPID'", "killed by signal 9 (SIGKILL)"),
    ],
)
def test_a_script_and_how_it_ends(nursery: Nursery, ps1: Script, pwsh: str, body: str, error: str) -> None:
    script = ps1(f'Write-Output "$($args[0]) of $($args.Count)"\n{body}')
    outcome, sink = run(nursery, script, "wor ld; $(Get-Date) `n", "two")
    assert (outcome.error, outcome.traceback, outcome.interrupted) == (error, "", None)
    assert (outcome.result, outcome.can_retry) == ((None, True) if error else ({"exit_code": 0}, False))
    assert sink.lines("stdout") == ["wor ld; $(Get-Date) `n of 2"]
    assert any("it broke" in line for line in sink.lines("stderr")) is ("throw" in body)
    assert "\x1b" not in str(sink.said), "nothing is coloured"


def test_its_surroundings(
    nursery: Nursery, ps1: Script, pwsh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the worker")
    cwd = tmp_path / "work"
    cwd.mkdir()
    expected = {"MY": "own", "A_SECRET": "", "HOME": str(cwd), "JIM_STEP": "a step", "TERM": "dumb"}
    expected |= {"NO_COLOR": "1", "POWERSHELL_TELEMETRY_OPTOUT": "1", "POWERSHELL_UPDATECHECK": "Off"}
    body = "\n".join(f'Write-Output "$env:{name}"' for name in expected)
    _, sink = run(nursery, ps1(f'{body}\nWrite-Output "$PWD"'), cwd=str(cwd), env={"MY": "own"})
    assert sink.lines("stdout") == [*expected.values(), str(cwd)]
    assert list(cwd.iterdir()) == [], "it leaves nothing of its own behind"


class TestWithoutPwsh:
    def test_it_is_found_among_the_usual_folders(
        self, nursery: Nursery, ps1: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(programs, "SEARCH_PATH", f"/no/such/folder:{tmp_path}")
        script = ps1("")
        outcome, _ = run(nursery, script)
        words = f"pwsh is not installed on worker {HERE}; install PowerShell 7, or set JIM_PWSH to its path"
        assert (outcome.error, outcome.can_retry) == (words, False)
        program(tmp_path, 'echo "$@"')
        _, sink = run(nursery, script, "-Region", "north")
        options = "-NoLogo -NoProfile -NonInteractive -File"
        assert sink.lines("stdout") == [f"{options} {script} -Region north"]

    def test_a_wrong_setting_is_named(self, nursery: Nursery, ps1: Script, tmp_path: Path) -> None:
        foreign = Path(program(tmp_path, ""))
        foreign.write_text("for another machine")
        for chosen, words in (
            ("/no/such/pwsh", f"/no/such/pwsh is not installed on worker {HERE}"),
            (str(foreign), f"cannot start {foreign} on worker {HERE}: Exec format error; install Power"),
        ):
            with override_settings(JIM_PWSH=chosen):
                outcome, _ = run(nursery, ps1(""))
                assert outcome.error.startswith(words)
                assert not outcome.can_retry
                assert get("powershell").clean({"script": ps1("")}), "nothing of it is needed to save a step"

    @pytest.mark.parametrize("end", ["kill -ABRT $$", "exit 150"])
    def test_one_that_breaks_down_is_told_from_a_script_that_fails(
        self, nursery: Nursery, ps1: Script, tmp_path: Path, end: str
    ) -> None:
        path = program(tmp_path, f"echo no ICU package found >&2; {end}")
        with override_settings(JIM_PWSH=path):
            outcome, sink = run(nursery, ps1(""))
        assert outcome.error.startswith(f"{path} is broken on worker {HERE}")
        assert not outcome.can_retry
        assert sink.said == [("stderr", "no ICU package found")]

    def test_a_cancel_ends_the_question_too(self, nursery: Nursery, ps1: Script, tmp_path: Path) -> None:
        asked = tmp_path / "asked"
        path = program(tmp_path, f'[ "$1" = -Version ] || exit 134\ntouch {asked}\nexec sleep 3600')
        with override_settings(JIM_PWSH=path):
            running = Running(nursery, step(ps1("")))
            wait_until(asked.exists)
            running.interrupt("cancel")
            assert running.outcome.status == "cancelled"


def test_its_config_is_canonical_after_cleaning(ps1: Script) -> None:
    script = ps1("")
    canonical = {"script": script, "arguments": [], "cwd": "", "env": {}}
    assert get("powershell").clean({"script": f" {script} "}) == canonical
    filled = {"arguments": ["-Date", "{{ nominal_date }}"], "env": {"TOKEN": "{{ secrets.token }}"}}
    assert get("powershell").clean(canonical | filled) == canonical | filled


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"script": ""}, "script", "is required: the absolute path of a .ps1 file"),
        ({"script": "{folder}/out.ps1"}, "script", "is outside the folders that scripts may come from"),
        ({"script": "{folder}/script.sh"}, "script", "must end in .ps1"),
        ({"script": "{folder}/renamed.ps1"}, "script", "must end in .ps1"),
        ({"script": "{folder}/{{ nominal_date }}.ps1"}, "script", "cannot contain placeholders"),
        ({"arguments": ["-Count", 3]}, "arguments", "every entry must be text: put numbers in quotes"),
        ({"arguments": ["{{ secrets.token }}"]}, "arguments", "it would be visible in the process list"),
        ({"env": {"DOTNET_STARTUP_HOOKS": "x"}}, "env", "DOTNET_STARTUP_HOOKS cannot be set"),
    ],
)
def test_what_is_refused(ps1: Script, tmp_path: Path, config: dict[str, Any], field: str, words: str) -> None:
    folder = tmp_path / "scripts"
    (tmp_path / "outside.ps1").touch()
    (folder / "out.ps1").symlink_to(tmp_path / "outside.ps1")
    (folder / "renamed.ps1").symlink_to(ps1("", "script.sh"))
    config = {"script": ps1("")} | config
    config["script"] = config["script"].replace("{folder}", str(folder))
    refuses("powershell", config, field, words)


def test_what_runs_is_where_its_links_lead(nursery: Nursery, ps1: Script, pwsh: str, tmp_path: Path) -> None:
    script = ps1('Write-Output "the file itself"')
    link = tmp_path / "scripts" / "link.ps1"
    link.symlink_to(script)
    assert run(nursery, str(link))[1].lines("stdout") == ["the file itself"]
