"""Who lives and who dies when one of worker, nursery and child does."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from execution import nursery as nursery_module
from execution.channel import Channel
from execution.nursery import House, Nursery
from execution.nursery_process import children_of
from execution.steps.base import perform
from tests.steps.stage import Recorder, Running, function, group_of, is_alive, work
from tests.waiting import wait_until

pytestmark = pytest.mark.live

Script = Callable[..., str]
FAMILY = """
trap '' TERM
echo pid program $$
sh -c "trap '' TERM; echo pid offspring \\$\\$; sleep 3600; sleep 3600" &
setsid sh -c 'echo pid escaped $$; sleep 3600; sleep 3600' > /dev/stdout &
sleep 3600; sleep 3600
"""


@pytest.fixture(autouse=True)
def short_kill() -> Iterator[None]:
    with override_settings(JIM_KILL_SECONDS=0.2):
        yield


@pytest.fixture
def own_nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def pid_of(house: House) -> int:
    assert house.process is not None
    return house.process.pid


def test_a_killed_worker_leaves_no_orphan_and_its_lock_is_free_only_then(
    script: Script, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.steps.owner", str(lock), str(tmp_path), script(FAMILY)],
        stdout=subprocess.PIPE,
        cwd=settings.BASE_DIR,
        text=True,
    )
    assert owner.stdout is not None
    pids: dict[str, int] = {}
    with owner.stdout:
        while len(pids) < 6:
            _, name, number = owner.stdout.readline().split()
            pids[name] = int(number)
    nurseries = list(children_of(owner.pid))
    assert len(nurseries) == 2
    assert not is_free(lock)
    owner.kill()
    owner.wait()
    wait_until(lambda: is_free(lock))
    assert [name for name, pid in pids.items() if is_alive(pid)] == []
    # They let go of it in the very last moments of their lives.
    wait_until(lambda: not any(is_alive(pid) for pid in nurseries))


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_killed_nursery_ends_all_it_runs_and_the_next_step_gets_another(
    own_nursery: Nursery, script: Script
) -> None:
    programs = Running(own_nursery, work("executable", {"argv": [script(FAMILY)]}))
    functions = Running(own_nursery, function("have_offspring"))
    wait_until(lambda: len(programs.sink.pids()) + len(functions.sink.pids()) == 6)
    idle_pid = perform(function("pid"), Recorder(), nursery=own_nursery).result
    houses = (own_nursery.programs, own_nursery.functions)
    before = [pid_of(house) for house in houses]
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
    assert not {pid_of(house) for house in houses} & set(before)


@pytest.mark.parametrize("is_dead_before_it_is_asked", [False, True])
def test_a_nursery_that_cannot_start_fails_the_step_and_not_the_worker(
    own_nursery: Nursery, monkeypatch: pytest.MonkeyPatch, is_dead_before_it_is_asked: bool
) -> None:
    boot = House._boot

    def boot_and_die(house: House) -> Channel:
        control = boot(house)
        assert house.process is not None
        house.process.wait()
        return control

    with monkeypatch.context() as patch:
        patch.setattr(nursery_module, "BOOT", "import sys; sys.exit(1)")
        if is_dead_before_it_is_asked:
            patch.setattr(House, "_boot", boot_and_die)
        outcome = perform(function("pid"), Recorder(), nursery=own_nursery)
    assert outcome.status == "failed_with_error"
    assert "the child process died" in outcome.error
    assert outcome.can_retry
    if not is_dead_before_it_is_asked:
        assert perform(function("pid"), Recorder(), nursery=own_nursery).status == "complete"


def test_everybody_has_a_session_of_their_own_so_that_ctrl_c_is_the_workers(
    nursery: Nursery, script: Script
) -> None:
    programs = Running(nursery, work("executable", {"argv": [script("echo pid program $$; sleep 3600")]}))
    functions = Running(nursery, function("ignore_everything"))
    wait_until(lambda: programs.sink.pids() and functions.sink.pids())
    pids = [pid_of(nursery.programs), pid_of(nursery.functions)]
    pids += [*programs.sink.pids().values(), *functions.sink.pids().values()]
    assert [os.getsid(pid) for pid in pids] == pids
    for running in (programs, functions):
        running.interrupt("cancel")
        assert running.outcome.status == "cancelled"


def test_a_nursery_survives_the_signals_that_mean_the_worker(nursery: Nursery) -> None:
    first = perform(function("pid"), Recorder(), nursery=nursery).result
    before = pid_of(nursery.functions)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(before, signum)
    assert perform(function("pid"), Recorder(), nursery=nursery).result == first
    assert pid_of(nursery.functions) == before


def test_closing_ends_everything_and_starts_nothing_more(own_nursery: Nursery, script: Script) -> None:
    programs = Running(own_nursery, work("executable", {"argv": [script(FAMILY)]}))
    functions = Running(own_nursery, function("have_offspring"))
    wait_until(lambda: len(programs.sink.pids()) + len(functions.sink.pids()) == 6)
    nurseries = [pid_of(own_nursery.programs), pid_of(own_nursery.functions)]
    own_nursery.close()
    pids = nurseries + list((programs.sink.pids() | functions.sink.pids()).values())
    assert [pid for pid in pids if is_alive(pid)] == []
    assert {programs.outcome.status, functions.outcome.status} == {"failed_with_error"}
    late = perform(function("pid"), Recorder(), nursery=own_nursery)
    assert (late.status, late.error, late.can_retry) == ("failed_with_error", "worker stopped", True)


def test_steps_leave_no_files_open_and_no_zombies(nursery: Nursery, script: Script) -> None:
    path = script("true & true")
    open_files = 0
    for number in range(12):
        perform(work("executable", {"argv": [path]}), Recorder(), nursery=nursery)
        perform(function("fail", "x"), Recorder(), nursery=nursery)
        running = Running(nursery, function("wait"))
        wait_until(lambda running=running: running.sink.said)  # type: ignore[misc]
        running.interrupt("cancel")
        assert running.outcome.status == "cancelled"
        if number == 3:
            open_files = count_files(os.getpid())
    wait_until(lambda: count_files(os.getpid()) <= open_files)
    wait_until(lambda: list(children_of(pid_of(nursery.programs))) == [])
    wait_until(lambda: len(list(children_of(pid_of(nursery.functions)))) <= 1)
    for house in (nursery.programs, nursery.functions):
        wait_until(lambda house=house: count_files(pid_of(house)) < 12)  # type: ignore[misc]


def count_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
