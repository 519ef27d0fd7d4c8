"""Moments in which a worker could lose sight of what it holds. The turns of its loop are taken one by one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest
import time_machine
from django.db import OperationalError
from django.utils import timezone

import execution.children.nursery
import execution.loops.lease
import execution.loops.registration
import execution.loops.runs
import execution.loops.worker
import execution.steps.python
from database import clock
from execution.loops import running
from execution.loops.lease import uptime
from execution.loops.running import run_until_signal
from execution.loops.worker import WorkerLoop
from execution.models import Execution, Worker, WorkerTask
from execution.models.attempt import ClaimedTask
from execution.models.task_queryset import WorkerTaskQuerySet
from execution.models.worker import WorkerQuerySet
from execution.steps.binding import Binding, LastResults, bind
from tests.base import SOMEBODY, attempts, fresh, queue, start, step, step_statuses
from tests.settings import TEST_DB
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.live]


@pytest.fixture(autouse=True)
def quick_end_in_own_folder(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path / "data"
    settings.JIM_GRACE_SECONDS = 0


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """What the step of `until` waits for."""
    return tmp_path / "go"


def until(path: Path, name: str) -> dict[str, Any]:
    return step(name, 0, "wait_for_file", kwargs={"path": str(path)})


def begin(*steps: dict[str, Any]) -> Execution:
    return start(*steps, now=clock.now())


@contextmanager
def open_worker(*, threads: int = 1, ahead: int = 0) -> Iterator[WorkerLoop]:
    """Few seats, and nobody who takes the turns of its loop."""
    loop = WorkerLoop(processes=1, threads=threads)
    loop.runs.ahead["thread"] = ahead
    loop._open()
    try:
        yield loop
    finally:
        loop.stop()
        loop._drain()
        loop._close()


def has_started_one(loop: WorkerLoop) -> bool:
    return any(not run.is_unstarted for run in loop.runs.values())


def held() -> set[tuple[int, int]]:
    return set(WorkerTask.objects.processing().values_list("pk", "attempt"))


def lose_the_answer_to_a_claim(
    monkeypatch: pytest.MonkeyPatch, *, then: Callable[[], None] = lambda: None
) -> None:
    """The next claim is committed, but the database goes away before anything of it starts."""

    def away(claimed: Sequence[ClaimedTask], last_results: LastResults) -> dict[int, Binding]:
        if not claimed:
            return bind(claimed, last_results)
        monkeypatch.setattr(execution.loops.runs, "bind", bind)
        then()
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(execution.loops.runs, "bind", away)


def lose_the_answer_to_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    real = WorkerTaskQuerySet.release

    def away(self: WorkerTaskQuerySet, *arguments: Any, **named: Any) -> set[int]:
        monkeypatch.setattr(WorkerTaskQuerySet, "release", real)
        real(self, *arguments, **named)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(WorkerTaskQuerySet, "release", away)


def rests_of(loop: WorkerLoop, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets an entry when the loop would sleep."""
    rests: list[str] = []
    monkeypatch.setattr(loop, "_rest", lambda: rests.append("rest"))
    return rests


class TestTheSameAttemptClaimedAgain:
    """In the very transaction that writes how its earlier run ended: the worker knows the new run."""

    def test_after_it_was_put_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clock, "sync", lambda: None)  # a beat could set it back
        begin({"name": "wait", "index": 0, "step_type": "wait", "config": {"duration": "1s"}})
        with open_worker() as loop:
            loop._flush(claiming=True)
            wait_until(lambda: loop.runs.ended)
            outcome = loop.runs.ended[0].outcome
            assert outcome is not None
            again_at = outcome.again_at
            assert again_at is not None
            wait_until(lambda: clock.now() > again_at)
            loop._flush(claiming=True)
            assert set(loop.runs) == held()
            assert loop.runs

    def test_after_it_was_given_back(self, go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(execution.loops.worker, "AHEAD_SECONDS", 0)
        begin(until(go, "long"), step("early"))
        with open_worker(ahead=1) as loop:
            loop._flush(claiming=True)
            wait_until(lambda: has_started_one(loop))
            lose_the_answer_to_a_release(monkeypatch)
            with pytest.raises(OperationalError):
                loop._give_back()
            go.touch()
            wait_until(lambda: loop.runs.ended)
            loop._give_back()
            loop._flush(claiming=True)
            assert set(loop.runs) == held()
            assert loop.runs


class TestWhatWasClaimed:
    def test_it_ends_cancelled_if_it_never_started_and_is_being_cancelled(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stray = begin(step("work"))
        with open_worker() as loop:
            lose_the_answer_to_a_claim(monkeypatch)
            with pytest.raises(OperationalError):
                loop._flush(claiming=True)
            assert stray.cancel(initiator=SOMEBODY, now=clock.now())
            loop._give_back()
        assert fresh(stray).status == Execution.Status.CANCELLED
        (attempt,) = attempts(stray)
        assert (attempt.status, attempt.message) == ("cancelled", "cancelled before the step started")

    def test_it_is_given_back_by_a_worker_that_stops_and_has_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stray = begin(step("work", on_crash="fail"))
        loop = WorkerLoop(processes=1, threads=1)
        lose_the_answer_to_a_claim(monkeypatch, then=loop.stop)
        loop.run()
        assert Worker.objects.get().status == Worker.Status.GONE
        assert queue(stray) == {"work": "queued"}
        assert step_statuses(stray) == {"work": ["pending"]}


def test_outcomes_that_the_database_refuses_do_not_hide_a_cancellation(
    go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, cancelled = begin(until(go, "refused")), begin(step("cancelled", 0, "wait_for_ever"))
    with open_worker(threads=2) as loop:
        loop._flush(claiming=True)
        wait_until(lambda: sum(not run.is_unstarted for run in loop.runs.values()) == 2)
        with monkeypatch.context() as patched:
            patched.setattr(execution.loops.worker, "finish", refuse)
            go.touch()
            wait_until(lambda: loop.runs.ended)
            cancelled.cancel(initiator=SOMEBODY, now=clock.now())
            wait_until(lambda: len(after_a_pass(loop).unwritten) == 2)
        while loop.runs:
            loop._pass(claiming=False)
    assert step_statuses(refused) == {"refused": ["complete"]}
    assert step_statuses(cancelled) == {"cancelled": ["cancelled"]}


def after_a_pass(loop: WorkerLoop) -> WorkerLoop:
    loop._pass(claiming=True)
    return loop


def refuse(*arguments: Any, **named: Any) -> list[ClaimedTask]:
    raise OperationalError("server closed the connection unexpectedly")


class TestRest:
    def test_who_takes_news_for_an_echo_of_its_own_looks_again_soon(self, go: Path) -> None:
        begin(until(go, "long"))
        with open_worker() as loop:
            loop._flush(claiming=True)
            wait_until(lambda: has_started_one(loop))
            loop.wrote_at = time.monotonic() + 3600
            loop.woken.clear()
            loop._changed()
            assert loop.woken.is_set() or loop._patience() <= execution.loops.worker.GROUP_SECONDS
            go.touch()

    def test_what_was_withdrawn_keeps_nobody_awake_and_does_not_hide_what_waits_after_it(
        self, go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(execution.loops.worker, "AHEAD_SECONDS", 0)
        started = begin(until(go, "long"), step("early"))
        with open_worker(ahead=1) as loop:
            loop._flush(claiming=True)
            wait_until(lambda: has_started_one(loop))
            with monkeypatch.context() as patched:
                rests = rests_of(loop, patched)
                loop._pass(claiming=True)
                assert queue(started) == {"long": "processing", "early": "queued"}
                assert rests == ["rest"]
            go.touch()
            while queue(started):
                loop._pass(claiming=True)
            begin(until(tmp_path / "never", "long again"), step("waits"))
            loop.runs.ahead["thread"] = 1
            loop._flush(claiming=True)
            wait_until(lambda: has_started_one(loop))
            assert loop.runs.backlog == 1

    def test_an_outcome_that_came_during_an_empty_claim_is_not_slept_over(
        self, go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(execution.loops.worker, "AHEAD_SECONDS", 3600)
        started = begin(until(go, "first"), until(tmp_path / "never", "second"))
        with open_worker(ahead=1) as loop:
            loop._flush(claiming=True)
            rests, claim_more = rests_of(loop, monkeypatch), loop._claim

            def claim_slowly() -> list[ClaimedTask]:
                monkeypatch.setattr(loop, "_claim", claim_more)
                go.touch()
                wait_until(lambda: loop.runs.ended and not loop.runs.backlog)
                return claim_more()

            monkeypatch.setattr(loop, "_claim", claim_slowly)
            loop._pass(claiming=True)
            assert rests == []
            loop._pass(claiming=True)
            assert step_statuses(started) == {"first": ["complete"], "second": ["in_progress"]}


class TestAStallBetweenTheCheckAndTheStart:
    """The worker is buried while one of its threads stands still; then the thread goes on."""

    @pytest.mark.parametrize("kind", ["in a thread", "in a child", "a program"])
    def test_nothing_starts_and_nothing_is_written(
        self, kind: str, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.JIM_EXECUTABLE_FOLDERS = [tmp_path]
        begun = tmp_path / "begun"
        execution = begin(touching(begun, kind))
        with open_worker() as loop:
            buried = loop.worker.pk
            stall(kind, monkeypatch, lambda: bury(loop))
            loop._flush(claiming=True)
            wait_until(lambda: loop.runs.ended)
            loop._pass(claiming=False)
            assert not begun.exists()
            assert loop.worker.pk != buried
        lost, again = attempts(execution)
        assert (lost.status, lost.error, lost.worker_id) == ("failed_with_error", "worker lost", buried)
        assert (again.status, again.worker_id) == ("pending", None)


def touching(path: Path, kind: str) -> dict[str, Any]:
    """A step that makes this file."""
    if kind == "a program":
        program = path.with_name("program")
        program.write_text(f"#!/bin/sh\ntouch {path}\n")
        program.chmod(0o755)
        return {"name": "work", "index": 0, "step_type": "executable", "config": {"argv": [str(program)]}}
    existing = {"path": str(path.parent), "then": str(path)}
    isolation = "process" if kind == "in a child" else "thread"
    return step("work", 0, "wait_for_file", kwargs=existing, isolation=isolation)


def stall(kind: str, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """The next step comes to a halt as late as it can in the worker's own process."""

    def before(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        meanwhile()
        return real(*arguments)

    owner: Any = execution.steps.python if kind == "in a thread" else execution.children.nursery.ForkServer
    name = {"in a thread": "place_of_context", "in a child": "start", "a program": "start"}[kind]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, before)


def bury(loop: WorkerLoop) -> None:
    """What a scheduler does after the lease; the worker notices at its next beat."""
    Worker.objects.filter(pk=loop.worker.pk).bury(now=clock.now())
    WorkerTask.objects.recover(now=clock.now())
    loop.registration.beat_once()


class TestLease:
    """It is known to be good for a while from before it was asked for: the answer may come late."""

    def test_a_worker_that_was_stalled_while_it_asked_claims_nothing_until_its_next_beat(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.JIM_LEASE_SECONDS = 24 * 3600  # no beat comes by itself
        late, is_stalling = [0.0], [True]

        def stall_in(owner: type, name: str) -> None:
            ask = getattr(owner, name)

            def answer(*arguments: Any, **named: Any) -> Any:
                answered = ask(*arguments, **named)
                late[0] += settings.JIM_LEASE_SECONDS * is_stalling[0]
                return answered

            monkeypatch.setattr(owner, name, answer)

        for module in (execution.loops.lease, execution.loops.registration):
            monkeypatch.setattr(module, "uptime", lambda: uptime() + late[0])
        stall_in(WorkerQuerySet, "register")
        stall_in(Worker, "beat")
        begin(step("first"), step("second"))
        with open_worker(threads=2) as loop:
            assert loop._claim() == []
            loop.registration.beat_once()
            assert loop._claim() == []
            is_stalling[0] = False
            loop.registration.beat_once()
            assert loop._flush(claiming=True) == 2


class Stubborn:
    """Ends when it is told twice, the second time while it hears the first."""

    def __init__(self) -> None:
        self.ended, self.waking = Event(), Lock()
        self.stops: list[str] = []

    def run(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert self.ended.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        is_alone = self.waking.acquire(blocking=False)
        self.stops.append("alone" if is_alone else "in the middle of another")
        if len(self.stops) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            self.ended.set()
        if is_alone:
            self.waking.release()


def test_a_signal_that_comes_while_another_is_obeyed_is_obeyed_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop wakes the loop, and whoever is interrupted in doing so holds the lock that it takes."""
    monkeypatch.setattr(running, "_spare_the_collector", lambda: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    loop = Stubborn()
    try:
        run_until_signal(loop)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert loop.stops == ["alone", "alone"]


def test_a_database_that_goes_away_while_it_registers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first try only the answer is lost: what it left is proven dead."""
    monkeypatch.setattr(execution.loops.worker, "RETRY_SECONDS", 0.01)
    register, lost = WorkerQuerySet.register, list[Worker]()

    def register_unheard(*given: Any, **fields: Any) -> Worker:
        worker = register(*given, **fields)
        if not lost:
            lost.append(worker)
            raise OperationalError("the database system is starting up")
        return worker

    monkeypatch.setattr(WorkerQuerySet, "register", register_unheard)
    with open_worker() as loop:
        assert [fresh(worker).status for worker in (*lost, loop.worker)] == ["dead", "alive"]


@pytest.mark.skipif(TEST_DB != "postgres", reason="SQLite's clock is this process's own")
def test_a_worker_whose_clock_is_wrong_beats_by_the_databases_and_says_so_once(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.JIM_LEASE_SECONDS = 3600
    with open_worker() as loop:
        with time_machine.travel(timezone.now() + timedelta(days=2)):
            loop.registration.beat_once()
            loop.registration.beat_once()
        worker = fresh(loop.worker)
        assert worker.lease_until < timezone.now() + timedelta(days=1)
        assert worker.clock_trouble.endswith("ahead of the database's")
        told = [each.levelname for each in caplog.records if "of this host" in each.getMessage()]
        assert told == ["WARNING"]
        loop.registration.beat_once()
        assert fresh(loop.worker).clock_trouble == ""
