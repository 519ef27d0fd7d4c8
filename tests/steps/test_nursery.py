"""Who lives and who dies when one of worker, nursery and child does."""

from __future__ import annotations

import fcntl
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from execution.children import nursery as nursery_module
from execution.children.channel import Channel
from execution.children.nursery import ForkServer, Nursery
from execution.children.nursery_process import children_of
from execution.loops.lease import Lease
from execution.steps.context import Context
from execution.steps.performing import perform
from tests.fleet import is_held, state
from tests.steps.stage import Recorder, Running, function, group_of, is_alive, work
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.live

Script = Callable[..., str]
FAMILY = """
trap '' TERM
echo pid program $$
sh -c "trap '' TERM; echo pid offspring \\$\\$; sleep 3600; sleep 3600" &
setsid sh -c 'echo pid escaped $$; sleep 3600; sleep 3600' > /dev/stdout &
sleep 3600; sleep 3600
"""


@pytest.fixture
def own_nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def pid_of(server: ForkServer) -> int:
    assert server.process is not None
    return server.process.pid


def test_a_killed_nursery_ends_all_it_runs_and_the_next_step_gets_another(
    own_nursery: Nursery, script: Script
) -> None:
    programs = Running(own_nursery, work("executable", {"argv": [script(FAMILY)]}))
    functions = Running(own_nursery, function("have_offspring"))
    wait_until(lambda: len(programs.sink.pids()) + len(functions.sink.pids()) == 6)
    idle_pid = perform(function("pid"), Recorder(), nursery=own_nursery).result
    houses = (own_nursery.programs, own_nursery.functions)
    before = [pid_of(server) for server in houses]
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    outcome = programs.outcome
    assert (outcome.status, outcome.error) == ("failed_with_error", "killed by signal 9 (SIGKILL)")
    assert outcome.can_retry
    assert functions.outcome.error == "the child process died (signal 9)"
    wait_until(lambda: not group_of(programs.sink.pids()["program"]))
    wait_until(lambda: not group_of(functions.sink.pids()["self"]))
    assert isinstance(idle_pid, int)
    wait_until(lambda: not is_alive(idle_pid))
    os.killpg(programs.sink.pids()["escaped"], signal.SIGKILL)
    again = work("executable", {"argv": [script("echo again")]})
    assert perform(again, Recorder(), nursery=own_nursery).status == "complete"
    assert perform(function("pid"), Recorder(), nursery=own_nursery).result not in (None, idle_pid)
    assert not {pid_of(server) for server in houses} & set(before)


@pytest.mark.parametrize("is_dead_before_it_is_asked", [False, True])
def test_a_nursery_that_cannot_start_fails_the_step_and_not_the_worker(
    own_nursery: Nursery, monkeypatch: pytest.MonkeyPatch, is_dead_before_it_is_asked: bool
) -> None:
    boot = ForkServer._boot

    def boot_and_die(server: ForkServer) -> Channel:
        control = boot(server)
        assert server.process is not None
        server.process.wait()
        return control

    with monkeypatch.context() as patch:
        patch.setattr(nursery_module, "BOOT", "import sys; sys.exit(1)")
        if is_dead_before_it_is_asked:
            patch.setattr(ForkServer, "_boot", boot_and_die)
        outcome = perform(function("pid"), Recorder(), nursery=own_nursery)
    assert outcome.status == "failed_with_error"
    assert "the child process died" in outcome.error
    assert outcome.can_retry
    if not is_dead_before_it_is_asked:
        assert perform(function("pid"), Recorder(), nursery=own_nursery).status == "complete"


def test_a_nursery_survives_the_signals_that_mean_the_worker(nursery: Nursery) -> None:
    """Ctrl-C does not even reach it: everybody has a session of their own."""
    child = perform(function("pid"), Recorder(), nursery=nursery).result
    before = pid_of(nursery.functions)
    assert isinstance(child, int)
    assert [os.getsid(pid) for pid in (before, child)] == [before, child]
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(before, signum)
    assert perform(function("pid"), Recorder(), nursery=nursery).result == child
    assert pid_of(nursery.functions) == before


def test_closing_ends_everything_and_starts_nothing_more_and_the_lock_is_free_only_then(
    script: Script, tmp_path: Path
) -> None:
    """A worker that is killed leaves its nursery in the same way."""
    path = tmp_path / "lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        nursery = Nursery(keep_fds=(lock.fileno(),))
        programs = Running(nursery, work("executable", {"argv": [script(FAMILY)]}))
        functions = Running(nursery, function("have_offspring"))
        wait_until(lambda: len(programs.sink.pids()) + len(functions.sink.pids()) == 6)
    nurseries = [pid_of(nursery.programs), pid_of(nursery.functions)]
    assert is_held(path)
    closing = threading.Thread(target=nursery.close)
    closing.start()
    wait_until(lambda: not is_held(path))
    pids = (programs.sink.pids() | functions.sink.pids()).values()
    assert [pid for pid in pids if is_alive(pid)] == []
    closing.join(PATIENCE_SECONDS)
    assert not any(is_alive(pid) for pid in nurseries)
    assert {programs.outcome.status, functions.outcome.status} == {"failed_with_error"}
    late = perform(function("pid"), Recorder(), nursery=nursery)
    assert (late.status, late.error, late.can_retry) == ("failed_with_error", "worker stopped", True)


class Stalled(Lease):
    """Good whenever the worker looks. Between that and the first start in another process, it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "is_good":
            return True
        if name == "until":
            self.asked += 1
            return -math.inf if self.asked == 1 else math.inf
        return super().__getattribute__(name)


@pytest.mark.parametrize("kind", ["program", "new child", "idle child"])
def test_a_process_that_gets_a_step_after_its_lease_refuses_and_the_worker_asks_again(
    kind: str, own_nursery: Nursery, script: Script, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    if kind == "idle child":
        perform(function("pid"), Recorder(), nursery=own_nursery)
    appending = work("executable", {"argv": [script(f"echo once >> {started}")]})
    task = appending if kind == "program" else function("append", str(started))
    context = Context(task, Recorder(), lease=(lease := Stalled()))
    outcome = perform(task, Recorder(), nursery=own_nursery, context=context)
    assert (outcome.status, lease.asked, started.read_text()) == ("complete", 2, "once\n")


def test_a_nursery_that_was_stopped_does_not_start_what_was_given_up_meanwhile(
    own_nursery: Nursery, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    late = work("executable", {"argv": [script(f"echo once >> {started}", name="late")]})
    ready = work("executable", {"argv": [script("true")]})
    assert perform(ready, Recorder(), nursery=own_nursery).status == "complete"
    pid = pid_of(own_nursery.programs)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T")
    with monkeypatch.context() as patch:
        for name in ("START_SECONDS", "END_SECONDS"):
            patch.setattr(nursery_module, name, 0.01)
        outcome = perform(late, Recorder(), nursery=own_nursery)
    assert "did not answer" in outcome.error
    os.kill(pid, signal.SIGCONT)
    assert perform(ready, Recorder(), nursery=own_nursery).status == "complete"
    assert not started.exists()


def test_steps_leave_no_files_open_and_no_zombies(nursery: Nursery, script: Script) -> None:
    path = script("true & true")
    open_files = 0
    for number in range(12):
        perform(work("executable", {"argv": [path]}), Recorder(), nursery=nursery)
        perform(function("tests.work.fail"), Recorder(), nursery=nursery)
        running = Running(nursery, function("wait"))
        wait_until(lambda running=running: running.sink.said)  # type: ignore[misc]
        running.interrupt("cancel")
        assert running.outcome.status == "cancelled"
        if number == 3:
            open_files = count_files(os.getpid())
    wait_until(lambda: count_files(os.getpid()) <= open_files)
    wait_until(lambda: list(children_of(pid_of(nursery.programs))) == [])
    wait_until(lambda: len(list(children_of(pid_of(nursery.functions)))) <= 1)
    for server in (nursery.programs, nursery.functions):
        wait_until(lambda server=server: count_files(pid_of(server)) < 12)  # type: ignore[misc]


def count_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
