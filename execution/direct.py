"""Direct requests: run a step for the calling process, in the next free seat of its pool.

A direct request starts before all queued tasks, but does not interrupt running ones. It has no row in the
queue: an activity records its only attempt, and the caller gets the outcome.

The caller can be a web server process, so the code of a step runs in a child process that does not have the
caller's secret keys.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import FrameType
from typing import Any, TypeVar

from django.conf import settings
from django.db import connection, connections

from activities.models import Activity
from database import clock
from database.outage import Outage
from database.statements import AWAY
from database.wake import Watch
from execution.children.nursery import Nursery
from execution.loops.finishing import bare
from execution.loops.lease import Lease, uptime
from execution.loops.recorder import StepOutput
from execution.steps.binding import bind
from execution.steps.context import Context
from execution.steps.outcome import Interrupted, Outcome, Reason
from execution.steps.performing import perform
from operations.initiator import Initiator
from schedules import permissions
from text.words import span

from .loops import recorder
from .models import Reservation, WorkerTask
from .models.adhoc import check_own_steps, complete, job_line
from .models.attempt import ClaimedTask, Finish
from .models.reservation import UNSTARTED, Lost

__all__ = ["Busy", "DirectResult", "Lost", "TimedOut", "run"]
logger = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
SAID_SECONDS = 0.25
# How often a waiting request looks for a free seat on PostgreSQL, where sending a notification for each claim
# and each end would slow down every task. On SQLite, each commit wakes the waiting request.
TURN_SECONDS = 0.015
# Changes within this time are handled together.
LOOK_SECONDS = 0.005
RETRY_SECONDS = 1.0
# Environment variables that child processes do not inherit. With JIM_KEYLESS, the settings do not read keys
# from files either. A pool of database connections would not survive a fork.
WITHHELD = ("JIM_SECRET_KEY", "JIM_SECRETS_KEYS", "JIM_SQL_CONNECTIONS", "JIM_DATABASE_POOL")
T = TypeVar("T")


class Busy(Exception):
    """Another direct request has reserved the next seat of the pool, or a queued task must start first."""

    @property
    def retry_after(self) -> int:
        """Return how many seconds to wait before repeating the request."""
        return math.ceil(settings.JIM_LEASE_SECONDS / 12)


class TimedOut(Exception):
    """No seat became free in time."""


@dataclass(frozen=True)
class DirectResult:
    """The outcome of a direct request, and the id of its activity."""

    activity_id: int
    outcome: Outcome

    @property
    def has_failed(self) -> bool:
        return self.outcome.status in Activity.FAILURES


def run(
    step: Mapping[str, Any],
    *,
    initiator: Initiator,
    timeout_seconds: float = WAIT_SECONDS,
    may: permissions.May = permissions.anything,
) -> DirectResult:
    """Wait for a seat for at most `timeout_seconds`, run the step in it, and return the recorded outcome.

    A Python function always runs in a child process, whatever its `isolation` is; the calling thread waits.

    Raise ValidationError if the step is invalid, NotYours if `may` says that the caller lacks a permission
    for the step, Busy or TimedOut if the request gets no seat, and Lost if it loses its seat or its outcome
    cannot be recorded. Do not call this function in a transaction: other processes would not see the
    reservation.
    """
    check_own_steps([step], may)
    line = job_line(complete(step), now=clock.now())
    with waiting(timeout_seconds) as wait:
        lease = Lease()
        reservation = _reserve(line, initiator, wait, lease)
        with kept(reservation, wait, lease) as keeper:
            if reservation.taken_at is None:
                _take(reservation, line, initiator, wait, keeper)
            wait.end()
            finish = _perform(_held(reservation, line), keeper)
            _record(reservation, finish, keeper)
    if keeper.reason == "cancel":
        raise KeyboardInterrupt
    return DirectResult(finish.task.activity_id, finish.outcome)


def _reserve(line: Mapping[str, Any], initiator: Initiator, wait: Wait, lease: Lease) -> Reservation:
    pool, holder = line["pool"], f"{socket.gethostname()}:{os.getpid()}"

    def look() -> Reservation | None:
        # After the first attempt, read before trying again: each attempt takes the write lock on SQLite.
        before = Reservation.objects.in_the_way(pool, now=clock.now()) if wait.is_on else None
        if before is not None:
            wait.patience = settings.JIM_POLL_SECONDS if before.released_at is None else _turn()
            return None
        lease.renew(asked_at=uptime(), seconds=settings.JIM_LEASE_SECONDS)
        now = clock.now()
        take = partial(Reservation.take, line=line, initiator=initiator, now=now, clock=clock.estimate)
        return Reservation.objects.reserve(line, holder=holder, now=now, then=take)

    reservation = wait.until(look)
    if reservation is None:
        raise Busy(_who_is_before(pool))
    return reservation


def _who_is_before(pool: str) -> str:
    before = Reservation.objects.in_the_way(pool, now=clock.now())
    if before is None:
        return f"another direct request in pool “{pool}” has just ended; try again"
    if before.released_at is not None:
        return f"a queued task in pool “{pool}” must start before the next direct request; try again later"
    if before.taken_at is None:
        return f"another direct request is already waiting for the next seat of pool “{pool}”"
    running = span(clock.now() - before.taken_at)
    return f"another direct request has been running in pool “{pool}” for {running}"


def _take(
    reservation: Reservation, line: Mapping[str, Any], initiator: Initiator, wait: Wait, keeper: SeatKeeper
) -> None:
    wait.patience = _turn()

    def look() -> bool | None:
        if keeper.reason is not None:
            raise Lost(UNSTARTED)
        # Look before trying again: each attempt takes the write lock on SQLite.
        if wait.is_on and connection.vendor == "sqlite" and not reservation.sees_room():
            return None
        return reservation.take(line, initiator=initiator, now=clock.now(), clock=clock.estimate) or None

    if wait.until(look) is None:
        pool = reservation.pool
        raise TimedOut(f"no seat in pool “{pool}” became free within {wait.seconds:g} s; {_who_runs(pool)}")


def _turn() -> float:
    return TURN_SECONDS if connection.vendor == "postgresql" else settings.JIM_POLL_SECONDS


def _who_runs(pool: str) -> str:
    names = WorkerTask.objects.processing().filter(pool=pool).order_by("claimed_at")
    named = [f"“{name}”" for name in names.values_list("name", flat=True)[:4]]
    if not named:
        return (
            "no task in this pool is running, so another limit that applies to the step is full or set to 0"
        )
    return f"still running: {', '.join(named[:3])}{' and others' if named[3:] else ''}"


def _held(reservation: Reservation, line: dict[str, Any]) -> ClaimedTask:
    """Return the direct request as a claimed task, although the request has no row in the queue."""
    assert reservation.activity_id is not None
    task = WorkerTask(
        activity_id=reservation.activity_id,
        name=line["name"],
        isolation=line["isolation"],
        step=line,
        claimed_at=reservation.taken_at,
    )
    return ClaimedTask.of(task)


def _perform(held: ClaimedTask, keeper: SeatKeeper) -> Finish:
    """Run the step until it ends, and return the request with the outcome of the step.

    A step that postpones itself keeps its seat until it continues, because the caller is waiting for the
    outcome.
    """
    said = keeper.listen(held.activity_id)
    work, binding, nursery = held.work, bind([held]).get(held.pk), _nursery(os.getpid())
    with _cancelled_by_ctrl_c(keeper):
        while True:
            context = keeper.attend(Context(work, said, binding, keeper.lease, runs_code=False))
            outcome = perform(work, said, nursery=nursery, context=context, clock=clock.estimate)
            if outcome.again_at is None:
                break
            work = replace(work, begun_at=outcome.executed_at.isoformat())
            with suppress(Interrupted):
                context.wait((outcome.again_at - clock.estimate()).total_seconds())
    return Finish(held, replace(outcome, message=outcome.message or said.message))


@lru_cache(maxsize=1)
def _nursery(pid: int) -> Nursery:
    """Return the fork servers of the calling process, whose id is `pid`.

    All direct requests of a process share these fork servers and reuse their Python children. A process that
    was forked from this one has another id, so it gets fork servers of its own.
    """
    env = {name: value for name, value in os.environ.items() if name not in WITHHELD}
    nursery = Nursery(env=env | {"JIM_KEYLESS": "1"})
    atexit.register(nursery.close)
    return nursery


@contextmanager
def _cancelled_by_ctrl_c(keeper: SeatKeeper) -> Iterator[None]:
    """Cancel the step if Ctrl-C is pressed during the block.

    The first Ctrl-C does not raise an exception inside the step, because the exception would count as a
    failure of the step. The second Ctrl-C raises KeyboardInterrupt, to stop a function that ignores the
    cancellation.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if keeper.reason is not None:
            keeper.overrule()
            raise KeyboardInterrupt
        keeper.interrupt("cancel")

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _record(reservation: Reservation, finish: Finish, keeper: SeatKeeper) -> None:
    """Record the outcome of the request; raise Lost if the request has lost its seat.

    If the database is unavailable, retry for as long as the lease is valid, then raise Lost.
    """
    is_doubtful = False
    outage = Outage(logger, "the outcome of a direct request is kept until the database is back")
    while True:
        try:
            keeper.stop()
            if _finish(reservation, finish) or (is_doubtful and _is_recorded(finish)):
                return
            raise Lost(
                "the seat was released, or its lease ended, while the step was running, so the outcome was "
                f"not recorded: see activity {finish.task.activity_id}"
            )
        except AWAY as error:
            if keeper.is_overdue:
                raise Lost(
                    "the database is unavailable, so the outcome of the step was not recorded"
                ) from error
            outage.note(error)
            connection.close()
            is_doubtful = True
            time.sleep(RETRY_SECONDS)


def _finish(reservation: Reservation, finish: Finish) -> bool:
    try:
        return reservation.finish(finish.ending(), now=clock.now())
    except AWAY:
        raise
    except Exception as error:
        logger.exception("the outcome of direct request %s was refused", reservation.pk)
        return reservation.finish(bare(finish, error).ending(), now=clock.now())


def _is_recorded(finish: Finish) -> bool:
    """Return whether the outcome was stored after all, although COMMIT reported an error."""
    ending = finish.ending()
    own = Activity.objects.filter(pk=ending.activity_id, status=ending.status)
    return own.filter(finished_at=ending.finished_at).exists()


class Wait:
    """A wait for a condition, for at most `seconds`.

    The condition is tested again when a Watch reports a change, and at least every `patience` seconds.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.patience: float = settings.JIM_POLL_SECONDS
        self.woken = threading.Event()
        self._deadline = time.monotonic() + seconds
        self._watch: Watch | None = None

    @property
    def is_on(self) -> bool:
        """Return whether waiting has begun, because the first test of the condition failed."""
        return self._watch is not None

    def until(self, look: Callable[[], T | None]) -> T | None:
        """Call `look` until it returns a result other than None; return the result, or None at a timeout."""
        while True:
            self.woken.clear()
            found = look()
            left = self._deadline - time.monotonic()
            if found is not None or left <= 0:
                return found
            self._begin()
            if self.woken.wait(min(left, self.patience)):
                time.sleep(LOOK_SECONDS)

    def _begin(self) -> None:
        if self._watch is None:
            self._watch = Watch("jim_tasks", self.woken.set)
            self._watch.start()

    def end(self) -> None:
        """Stop watching the queue, without waiting for the watching thread, which can take half a second."""
        if self._watch is not None:
            self._watch.stopping.set()


@contextmanager
def waiting(seconds: float) -> Iterator[Wait]:
    wait = Wait(seconds)
    try:
        yield wait
    finally:
        wait.end()


@contextmanager
def kept(reservation: Reservation, wait: Wait, lease: Lease) -> Iterator[SeatKeeper]:
    """Keep the seat during the block, and yield the keeper of the seat.

    If the block raises an exception, cancel the step and release the seat.
    """
    keeper = SeatKeeper(reservation, lease, lost=wait.woken.set)
    try:
        yield keeper
    except BaseException:
        keeper.interrupt("cancel")
        with suppress(*AWAY):  # the seat is then freed when its lease ends
            keeper.stop()
            reservation.release(clock.now())
        raise


class SeatKeeper:
    """A thread that renews the lease of a direct request's seat and stores the output of its step."""

    def __init__(self, reservation: Reservation, lease: Lease, *, lost: Callable[[], object]) -> None:
        self.lease = lease
        self.reason: Reason | None = None
        self.context: Context | None = None
        self._reservation = reservation
        self._lost = lost
        self._said: StepOutput | None = None
        self._outage = Outage(
            logger, "the heartbeat of a direct request failed; its seat is kept until the lease ends"
        )
        self._beaten = lease.asked_at
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="direct-beat", daemon=True)
        self._thread.start()

    @property
    def is_overdue(self) -> bool:
        """Return whether the lease has ended, or is so near its end that others can soon take the seat."""
        return not self.lease.is_good

    def listen(self, activity_id: int) -> StepOutput:
        self._said = StepOutput(activity_id, clock.estimate)
        return self._said

    def attend(self, context: Context) -> Context:
        """Store the context of the step, so that the step can be interrupted; return the context.

        If the request has been interrupted already, interrupt the step immediately.
        """
        self.context = context
        if self.reason is not None:
            context.interrupt(self.reason)
        return context

    def interrupt(self, reason: Reason) -> None:
        """Interrupt the step. If the step has been interrupted before, the first reason is kept."""
        self.reason = self.reason or reason
        if self.context is not None:
            self.context.interrupt(self.reason)

    def overrule(self) -> None:
        """Let the step count as interrupted, even if it ends normally."""
        if self.context is not None:
            self.context.saw_interrupt = True

    def stop(self) -> None:
        """Stop the heartbeats, and store the remaining output of the step."""
        self._stopping.set()
        self._thread.join()
        self._tell()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(min(SAID_SECONDS, settings.JIM_LEASE_SECONDS / 12)):
                try:
                    self._beat()
                    self._tell()
                    self._outage.is_over()
                except Exception as error:
                    self._outage.note(error)
                    connection.close()
                if self.is_overdue:
                    self._lose()
        finally:
            connections.close_all()

    def _beat(self) -> None:
        before = uptime()
        if before - self._beaten < settings.JIM_LEASE_SECONDS / 12:
            return
        if self._reservation.beat(clock.now()):
            self._beaten = before
            self.lease.renew(asked_at=before, seconds=settings.JIM_LEASE_SECONDS)
        else:
            self._lose()

    def _tell(self) -> None:
        if self._said is not None and recorder.write([self._said], worker_id=self._reservation.pk):
            self._lose()

    def _lose(self) -> None:
        self.lease.end()
        self.interrupt("lost")
        self._lost()
