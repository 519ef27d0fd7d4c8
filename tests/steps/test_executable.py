"""Programs: real processes, and nothing left of them."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from execution.children import nursery as nursery_module
from execution.children.nursery import Nursery
from execution.steps.binding import Binding
from execution.steps.context import Work
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from tests.steps.stage import Recorder, Running, group_of, is_alive, work
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.live

Script = Callable[..., str]
FAMILY = """
trap {on_term} TERM
echo pid self $$
sh -c 'trap {on_term} TERM; echo pid grandchild $$; while :; do sleep 0.05; done' &
while :; do sleep 0.05; done
"""


def program(*argv: str, timeout: float | None = None, **rest: Any) -> Work:
    return work("executable", {"argv": list(argv), **rest}, timeout_seconds=timeout)


def run(nursery: Nursery, *argv: str, **rest: Any) -> tuple[Outcome, Recorder]:
    sink = Recorder()
    return perform(program(*argv, **rest), sink, nursery=nursery), sink


def test_success(nursery: Nursery, script: Script) -> None:
    body = 'echo "hello $1"; echo err >&2; printf "no end"; printf "\\377\\n" >&2'
    outcome, sink = run(nursery, script(body), "wor ld; $(echo no shell)")
    assert (outcome.status, outcome.result) == ("complete", {"exit_code": 0})
    assert sink.lines("stdout") == ["hello wor ld; $(echo no shell)", "no end"]
    assert sink.lines("stderr") == ["err", "\ufffd"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "killed by signal 9 (SIGKILL)"),
        ("kill -40 $$", "killed by signal 40"),
    ],
)
def test_failure(nursery: Nursery, script: Script, body: str, error: str) -> None:
    outcome, sink = run(nursery, script(f"echo before; {body}"))
    assert (outcome.status, outcome.error, outcome.traceback) == ("failed_with_error", error, "")
    assert (outcome.can_retry, outcome.interrupted) == (True, None)
    assert sink.said == [("stdout", "before")]


def test_huge_output_neither_blocks_nor_gets_lost(nursery: Nursery, script: Script) -> None:
    outcome, sink = run(nursery, script("seq 1 50000; seq 1 1000 >&2"))
    assert outcome.status == "complete"
    assert sink.lines("stdout") == [str(n) for n in range(1, 50_001)]
    assert len(sink.lines("stderr")) == 1_000


FILL = """
import os, pathlib, sys
os.set_blocking(1, False)
try:
    for _ in range(1000):
        os.write(1, b"x" * 4095 + b"\\n")
except BlockingIOError:
    pathlib.Path(sys.argv[1]).touch()
os.set_blocking(1, True)
print("end")
"""


def test_a_slow_sink_slows_the_program_down(nursery: Nursery, script: Script, tmp_path: Path) -> None:
    class Slow(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.may_go_on = threading.Event()

        def output(self, stream: str, lines: list[str]) -> None:
            self.may_go_on.wait(PATIENCE_SECONDS)
            super().output(stream, lines)

    sink, full = Slow(), tmp_path / "full"
    running = Running(nursery, program(script(FILL, interpreter=sys.executable), str(full)), sink)
    wait_until(full.exists)
    assert sink.said == []
    sink.may_go_on.set()
    assert running.outcome.status == "complete"
    assert sink.lines("stdout")[-1] == "end"


def test_the_environment_is_clean(
    nursery: Nursery, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the worker")
    given = Work(
        key="5e1c2a", attempt=2, name="Export", step_type="executable",
        config={"argv": [script("/usr/bin/env; pwd; cat")], "cwd": str(tmp_path), "env": {"MY": "own"}},
        execution_id=7, schedule_name="Nightly HR Sync", nominal_at="2026-03-01T02:00:00+00:00",
    )  # fmt: skip
    sink = Recorder()
    assert perform(given, sink, nursery=nursery).status == "complete"
    *lines, folder = sink.lines("stdout")
    env = dict(line.split("=", 1) for line in lines)
    env = {name: value for name, value in env.items() if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
    assert folder == str(tmp_path)
    assert env == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(tmp_path),
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        "JIM_IDEMPOTENCY_KEY": "5e1c2a",
        "JIM_ATTEMPT": "2",
        "JIM_EXECUTION": "7",
        "JIM_SCHEDULE": "Nightly HR Sync",
        "JIM_STEP": "Export",
        "JIM_NOMINAL_TIME": "2026-03-01T02:00:00+00:00",
        "MY": "own",
    }


def test_an_earlier_step_cannot_choose_the_names_of_variables(nursery: Nursery, script: Script) -> None:
    """Also in a plan that was made when it could."""
    config = {"argv": [script("echo started")], "env": "{{ steps.a.result }}"}
    given = work("executable", config, refs=["steps.a.result"])
    sink = Recorder()
    outcome = perform(given, sink, nursery=nursery, binding=Binding({"steps.a.result": {"MY": "own"}}))
    assert (outcome.status, outcome.can_retry, sink.said) == ("failed_with_error", False, [])
    assert "env: can have placeholders in its values only: write out the names" in outcome.error


def test_a_program_inherits_three_files_and_no_signal_and_has_a_session_of_its_own(
    nursery: Nursery, script: Script
) -> None:
    body = (
        "import os; print(os.listdir('/proc/self/fd'), os.getpid() == os.getsid(0) == os.getpgid(0))\n"
        "status = dict(line.split(':') for line in open('/proc/self/status'))\n"
        "print(status['SigBlk'].strip(), status['SigIgn'].strip(), sep='\\n')"
    )
    _, sink = run(nursery, script(body, interpreter=f"{sys.executable} -S"))
    own, blocked, ignored = sink.lines("stdout")
    assert own == "['0', '1', '2', '3'] True", "3 is the folder being listed"
    # Signals 32 and 33 are the C library's own: nobody can change what was inherited for them.
    changeable = ~(0b11 << 31)
    # Python itself ignores SIGPIPE and SIGXFSZ.
    python = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
    assert (int(blocked, 16), int(ignored, 16) & changeable) == (0, python)


def test_a_program_that_cannot_start_says_where_and_why(nursery: Nursery, script: Script) -> None:
    path = script("")
    for content, words in (
        ("no shebang", "cannot start {} on worker {}: Exec format error"),
        ("#!/does/not/exist\n", "cannot start {} on worker {}: No such file or directory"),
        (None, "cannot run on worker {1}: argv: {0} does not exist"),
    ):
        Path(path).write_text(content) if content else Path(path).unlink()
        outcome, _ = run(nursery, path)
        assert outcome.error == words.format(path, socket.gethostname())
        assert (outcome.status, outcome.can_retry) == ("failed_with_error", False)
    outcome, _ = run(nursery, script(""), "x" * 200_000)
    assert (outcome.error.rpartition(": ")[2], outcome.can_retry) == ("Argument list too long", False)
    assert run(nursery, script("echo $#"), *["x" * 1_000] * 300)[1].lines("stdout") == ["300"]


@pytest.mark.parametrize(
    ("on_term", "reason", "status", "words"),
    [
        ("-", "cancel", "cancelled", "cancelled"),
        ("''", "lost", "failed_with_error", "worker lost its lease"),
    ],
)
def test_an_interrupt_ends_the_whole_group(
    nursery: Nursery, script: Script, on_term: str, reason: str, status: str, words: str
) -> None:
    running = Running(nursery, program(script(FAMILY.replace("{on_term}", on_term)), timeout=3600))
    wait_until(lambda: len(running.sink.pids()) == 2)
    pids = running.sink.pids()
    running.interrupt(reason)
    outcome = running.outcome
    assert (outcome.status, outcome.message + outcome.error) == (status, words)
    assert (outcome.interrupted, outcome.can_retry) == (reason, reason != "cancel")
    wait_until(lambda: not any(is_alive(pid) for pid in pids.values()))
    wait_until(lambda: not group_of(pids["self"]))


@pytest.mark.usefixtures("patience")
def test_a_program_can_clean_up_when_it_is_interrupted(nursery: Nursery, script: Script) -> None:
    body = "trap 'echo cleaned up; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    running = Running(nursery, program(script(body)))
    wait_until(lambda: running.sink.said)
    running.interrupt("cancel")
    assert running.outcome.status == "cancelled"
    assert running.sink.lines("stdout") == ["ready", "cleaned up"]


def test_an_interrupt_after_the_end_changes_nothing(
    nursery: Nursery, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program has ended, and a writer it left behind keeps the step busy: its true outcome counts."""
    monkeypatch.setattr(nursery_module, "DRAIN_SECONDS", PATIENCE_SECONDS)
    body = "echo pid self $$; (while :; do echo x; sleep 0.01; done) & exit 0"
    running = Running(nursery, program(script(body)))
    wait_until(running.sink.pids)
    leader = running.sink.pids()["self"]
    wait_until(lambda: not is_alive(leader))
    assert running.is_alive()
    running.interrupt("cancel")
    assert (running.outcome.status, running.outcome.interrupted) == ("complete", None)


@pytest.mark.parametrize("redirect", ["", ">/dev/null 2>&1"], ids=["holds the pipes", "in silence"])
def test_what_a_program_leaves_in_the_background_ends_with_it(
    nursery: Nursery, script: Script, redirect: str
) -> None:
    outcome, sink = run(nursery, script(f"sleep 3600 {redirect} & echo pid left $!; echo done"))
    assert outcome.status == "complete"
    assert sink.lines("stdout")[-1] == "done"
    wait_until(lambda: not is_alive(sink.pids()["left"]))


def test_last_words_from_the_background_are_heard(
    nursery: Nursery, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery_module, "DRAIN_SECONDS", PATIENCE_SECONDS)
    _, sink = run(nursery, script("(sleep 0.1; echo later) & echo first"))
    assert sink.lines("stdout") == ["first", "later"]


def test_a_process_that_left_the_group_cannot_hold_the_step(
    nursery: Nursery, script: Script, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    leaves = f"setsid sh -c 'echo pid gone $$; touch {away}; exec sleep 3600' &"
    outcome, sink = run(nursery, script(f"{leaves} while [ ! -e {away} ]; do sleep 0.01; done"))
    assert outcome.status == "complete"
    os.killpg(sink.pids()["gone"], 9)
