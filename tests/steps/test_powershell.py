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

from execution.nursery import Nursery
from execution.steps import powershell, programs
from execution.steps.base import Outcome, Work, get, perform
from schedules.registry import ConfigError
from tests.steps import pwsh_stand_in
from tests.steps.stage import Recorder, Running, group_of, is_alive, work
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.serial

Script = Callable[..., str]
HERE = socket.gethostname()
REAL = shutil.which("pwsh", path=programs.SEARCH_PATH)
FAMILY = """
Write-Output "pid self $PID"
& /bin/sh -c 'trap : TERM; echo pid child $$; while :; do sleep 0.05; done'
"""


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
def ps1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Makes a script in a folder that scripts may come from."""

    def make(body: str, name: str = "script.ps1") -> str:
        path = tmp_path / "scripts" / name
        path.write_text(body)
        return str(path)

    monkeypatch.setattr(powershell, "PROBE_SECONDS", PATIENCE_SECONDS)
    (tmp_path / "scripts").mkdir()
    with override_settings(
        JIM_EXECUTABLE_FOLDERS=[tmp_path / "scripts"], JIM_DATA_DIR=tmp_path / "data", JIM_KILL_SECONDS=0.2
    ):
        yield make


def program(folder: Path, body: str) -> str:
    path = folder / "pwsh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def step(script: str, *arguments: str, timeout: float | None = None, **rest: Any) -> Work:
    config = {"script": script, "arguments": list(arguments), **rest}
    return work("powershell", config, timeout_seconds=timeout)


def run(nursery: Nursery, script: str, *arguments: str, **rest: Any) -> tuple[Outcome, Recorder]:
    sink = Recorder()
    return perform(step(script, *arguments, **rest), sink, nursery=nursery), sink


def test_success(nursery: Nursery, ps1: Script, pwsh: str) -> None:
    script = ps1('Write-Output "$($args[0]) of $($args.Count)"')
    outcome, sink = run(nursery, script, "wor ld; $(Get-Date) `n", "two")
    assert (outcome.status, outcome.result, outcome.error) == ("complete", {"exit_code": 0}, "")
    assert sink.said == [("stdout", "wor ld; $(Get-Date) `n of 2")]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("exit 3", "exit code 3"),
        ("exit 255", "exit code 255"),
        ('throw "it broke"', "exit code 1"),
        ("& /bin/sh -c 'exit 7'\nexit $LASTEXITCODE", "exit code 7"),
        ("& /bin/sh -c 'kill -9 $PPID'", "killed by signal 9 (SIGKILL)"),
    ],
)
def test_failure(nursery: Nursery, ps1: Script, pwsh: str, body: str, error: str) -> None:
    outcome, sink = run(nursery, ps1(f'Write-Output "before"\n{body}'))
    assert (outcome.status, outcome.error, outcome.traceback) == ("failed_with_error", error, "")
    assert (outcome.can_retry, outcome.interrupted) == (True, None)
    assert sink.lines("stdout") == ["before"]


@pytest.mark.parametrize("body", ['Write-Error "no matter"', "& /bin/sh -c 'exit 7'"])
def test_what_powershell_goes_on_after_is_no_failure(
    nursery: Nursery, ps1: Script, pwsh: str, body: str
) -> None:
    outcome, sink = run(nursery, ps1(f'{body}\nWrite-Output "after"'))
    assert (outcome.status, sink.lines("stdout")) == ("complete", ["after"])


def test_errors_are_on_the_other_stream_and_nothing_is_coloured(
    nursery: Nursery, ps1: Script, pwsh: str
) -> None:
    _, sink = run(nursery, ps1('Write-Output "fine"\nthrow "it broke"'))
    assert sink.lines("stdout") == ["fine"]
    assert any("it broke" in line for line in sink.lines("stderr"))
    assert "\x1b" not in "".join(line for _, line in sink.said)


def test_its_surroundings(
    nursery: Nursery, ps1: Script, pwsh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the worker")
    names = ["MY", "A_SECRET", "HOME", "JIM_STEP", "JIM_ATTEMPT", "TERM", "NO_COLOR"]
    names += ["POWERSHELL_TELEMETRY_OPTOUT", "POWERSHELL_UPDATECHECK"]
    body = "\n".join(f'Write-Output "{name}=$env:{name}"' for name in names)
    cwd = tmp_path / "work"
    cwd.mkdir()
    outcome, sink = run(nursery, ps1(f'{body}\nWrite-Output "$PWD"'), cwd=str(cwd), env={"MY": "own"})
    assert outcome.status == "complete"
    assert sink.lines("stdout") == [
        "MY=own",
        "A_SECRET=",
        f"HOME={cwd}",
        "JIM_STEP=a step",
        "JIM_ATTEMPT=1",
        "TERM=dumb",
        "NO_COLOR=1",
        "POWERSHELL_TELEMETRY_OPTOUT=1",
        "POWERSHELL_UPDATECHECK=Off",
        str(cwd),
    ]
    assert list(cwd.iterdir()) == [], "it leaves nothing of its own behind"


def test_output_is_heard_while_it_runs(nursery: Nursery, ps1: Script, pwsh: str) -> None:
    running = Running(nursery, step(ps1('Write-Output "now"\nStart-Sleep 3600')))
    wait_until(lambda: running.sink.said == [("stdout", "now")])
    running.interrupt("cancel")
    assert running.outcome.status == "cancelled"


@pytest.mark.parametrize(
    ("reason", "status", "words"),
    [
        ("cancel", "cancelled", "cancelled"),
        ("drain", "failed_with_error", "worker stopped"),
        ("lost", "failed_with_error", "worker lost its lease"),
    ],
)
def test_an_interrupt_ends_all_that_it_started(
    nursery: Nursery, ps1: Script, pwsh: str, reason: str, status: str, words: str
) -> None:
    running = Running(nursery, step(ps1(FAMILY)))
    wait_until(lambda: len(running.sink.pids()) == 2)
    pids = running.sink.pids()
    running.interrupt(reason)
    outcome = running.outcome
    assert (outcome.status, outcome.message + outcome.error) == (status, words)
    assert outcome.interrupted == reason
    wait_until(lambda: not any(is_alive(pid) for pid in pids.values()))
    wait_until(lambda: not group_of(pids["self"]))


def test_a_timeout_ends_it(nursery: Nursery, ps1: Script, pwsh: str) -> None:
    running = Running(nursery, step(ps1(FAMILY), timeout=3600))
    wait_until(lambda: len(running.sink.pids()) == 2)
    running.interrupt("timeout")
    outcome = running.outcome
    assert (outcome.status, outcome.error) == ("failed_with_error", "timed out after 3600 s")
    assert (outcome.interrupted, outcome.can_retry) == ("timeout", True)
    wait_until(lambda: not any(is_alive(pid) for pid in running.sink.pids().values()))


def test_it_ends_with_its_worker(ps1: Script, pwsh: str) -> None:
    """As after a kill -9, which closes the worker's end of everything."""
    with Nursery() as nursery:
        running = Running(nursery, step(ps1(FAMILY)))
        wait_until(lambda: len(running.sink.pids()) == 2)
    pids = running.sink.pids()
    wait_until(lambda: not any(is_alive(pid) for pid in pids.values()))
    wait_until(lambda: not group_of(pids["self"]))
    assert running.outcome.status == "failed_with_error"


class TestWithoutPwsh:
    def test_it_says_so_and_what_to_do(
        self, nursery: Nursery, ps1: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(programs, "SEARCH_PATH", str(tmp_path))
        outcome, _ = run(nursery, ps1(""))
        assert outcome.error == (
            f"pwsh is not installed on worker {HERE}; install PowerShell 7 or set JIM_PWSH"
        )
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)

    def test_it_is_found_among_the_usual_folders(
        self, nursery: Nursery, ps1: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(programs, "SEARCH_PATH", f"/usr/bin:/bin:{tmp_path}")
        program(tmp_path, 'echo "$@"')
        script = ps1("")
        _, sink = run(nursery, script, "-Region", "north")
        assert REAL or sink.lines("stdout") == [
            f"-NoLogo -NoProfile -NonInteractive -File {script} -Region north"
        ]

    @pytest.mark.parametrize("chosen", ["/no/such/pwsh", "pwsh-8", "/dev/null"])
    def test_a_wrong_setting_is_named(self, nursery: Nursery, ps1: Script, chosen: str) -> None:
        with override_settings(JIM_PWSH=chosen):
            outcome, _ = run(nursery, ps1(""))
        assert outcome.error.startswith(f"{chosen} is not installed on worker {HERE}")
        assert not outcome.can_retry

    def test_one_that_cannot_be_started_is_told(self, nursery: Nursery, ps1: Script, tmp_path: Path) -> None:
        path = tmp_path / "pwsh"
        path.write_text("for another machine")
        path.chmod(0o755)
        with override_settings(JIM_PWSH=str(path)):
            outcome, _ = run(nursery, ps1(""))
        assert outcome.error == (
            f"cannot start {path} on worker {HERE}: Exec format error; install PowerShell 7 or set JIM_PWSH"
        )
        assert not outcome.can_retry

    @pytest.mark.parametrize("end", ["kill -ABRT $$", "exit 134", "exit 150"])
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

    def test_nothing_of_it_is_needed_to_save_a_step(self, ps1: Script) -> None:
        with override_settings(JIM_PWSH="/no/such/pwsh"):
            assert get("powershell").clean({"script": ps1("")})


class TestConfig:
    def test_it_is_canonical_after_cleaning(self, ps1: Script) -> None:
        script = ps1("")
        assert get("powershell").clean({"script": f" {script} "}) == {
            "script": script,
            "arguments": [],
            "cwd": "",
            "env": {},
        }

    @pytest.mark.parametrize(
        ("config", "field", "words"),
        [
            ({}, "script", "is required: the absolute path of a .ps1 file"),
            ({"script": 7}, "script", "must be text"),
            ({"script": "script.ps1"}, "script", "is not an absolute path; write it from / on"),
            ({"script": "{folder}/missing.ps1"}, "script", "does not exist"),
            ({"script": "{folder}"}, "script", "is a folder, not a script"),
            ({"script": "/etc/passwd"}, "script", "is outside the folders that scripts may come from"),
            ({"script": "{folder}/out.ps1"}, "script", "is outside the folders that scripts may come from"),
            ({"script": "{folder}/../outside.ps1"}, "script", "is outside the folders"),
            ({"script": "{folder}/script.sh"}, "script", "files whose names end in .ps1"),
            ({"script": "{folder}/renamed.ps1"}, "script", "files whose names end in .ps1"),
            ({"script": "{folder}/{{ nominal_date }}.ps1"}, "script", "takes no placeholders"),
            ({"script": "{folder}/a\0.ps1"}, "script", "contains NUL"),
            ({"arguments": "-Region north"}, "arguments", "must be a list with one entry per value"),
            ({"arguments": ["-Count", 3]}, "arguments", "every entry must be text: put numbers in quotes"),
            ({"arguments": ["{{ secrets.token }}"]}, "arguments", "it would show in the process list"),
            ({"cwd": "/does/not/exist"}, "cwd", "is not an existing folder"),
            ({"env": {"DOTNET_STARTUP_HOOKS": "x"}}, "env", "DOTNET_STARTUP_HOOKS may not be set"),
            ({"env": {"PSModulePath": "x"}}, "env", "PSModulePath may not be set"),
            ({"env": {"LD_PRELOAD": "x"}}, "env", "LD_PRELOAD may not be set"),
            ({"env": {"A": 1}}, "env", "the value of A must be text"),
            ({"command": "Get-Date"}, "command", "they have script, arguments, cwd, env"),
        ],
    )
    def test_what_is_refused(
        self, ps1: Script, tmp_path: Path, config: dict[str, Any], field: str, words: str
    ) -> None:
        folder, good = tmp_path / "scripts", ps1("")
        ps1("", "script.sh")
        (tmp_path / "outside.ps1").touch()
        (folder / "out.ps1").symlink_to(tmp_path / "outside.ps1")
        (folder / "renamed.ps1").symlink_to(folder / "script.sh")
        if "script" in config and isinstance(config["script"], str):
            config = config | {"script": config["script"].replace("{folder}", str(folder))}
        elif config:
            config = {"script": good, **config}
        with pytest.raises(ConfigError) as refused:
            get("powershell").clean(config)
        assert list(refused.value.errors) == [field]
        assert words in refused.value.errors[field]

    def test_placeholders_are_taken_where_they_are_only_values(self, ps1: Script) -> None:
        config = {
            "script": ps1(""),
            "arguments": ["-Date", "{{ nominal_date }}"],
            "cwd": "",
            "env": {"TOKEN": "{{ secrets.token }}"},
        }
        assert get("powershell").clean(config) == config

    def test_what_runs_is_where_its_links_lead(
        self, nursery: Nursery, ps1: Script, pwsh: str, tmp_path: Path
    ) -> None:
        script = ps1('Write-Output "the file itself"')
        link = tmp_path / "scripts" / "link.ps1"
        link.symlink_to(script)
        assert run(nursery, str(link))[1].lines("stdout") == ["the file itself"]
        Path(script).unlink()
        outcome, _ = run(nursery, str(link))
        assert outcome.error == f"cannot run on worker {HERE}: script: {link} does not exist"
