"""Direct requests: a step runs for the calling process, in the next free seat of its pool.

The caller may be a process that serves pages, so code that a step names never runs inside of it, but in a
child that has none of its keys.

After what runs, before everything queued, and nothing is preempted. There is no task; an activity records the
one attempt, and the caller hears how it ended.
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
from execution.loops.recorder import Said
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
from .models.attempt import Finish, Held
from .models.reservation import Lost

__all__ = ["Answer", "Busy", "Lost", "TimedOut", "run"]
logger = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
SAID_SECONDS = 0.25
# SQLite tells of every commit. To tell of every claim and end would cost PostgreSQL something for each task.
TURN_SECONDS = 0.015
# One look is enough for all that changes within this time.
LOOK_SECONDS = 0.005
RETRY_SECONDS = 1.0
# What the children do not inherit. With JIM_KEYLESS, the settings read no keys from files either.
# A pool of connections would not survive a fork.
WITHHELD = ("JIM_SECRET_KEY", "JIM_SECRETS_KEYS", "JIM_SQL_CONNECTIONS", "JIM_DATABASE_POOL")
T = TypeVar("T")


class Busy(Exception):
    """Another direct request has the next seat of the pool, or a queued task goes first."""

    @property
    def retry_after(self) -> int:
        """In how many seconds it is worth to ask again."""
        return math.ceil(settings.JIM_LEASE_SECONDS / 12)


class TimedOut(Exception):
    """No seat became free in time."""


@dataclass(frozen=True)
class Answer:
    """How a direct request ended."""

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
) -> Answer:
    """Wait for a seat, at most for the timeout, run the step and record its outcome.

    This thread waits for it; a Python function runs in a child process, whatever its `isolation` says.

    Raises ValidationError about the step, Busy, TimedOut or Lost. Not inside a transaction: nobody would see
    the reservation.
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
    return Answer(finish.task.activity_id, finish.outcome)


def _reserve(line: Mapping[str, Any], initiator: Initiator, wait: Wait, lease: Lease) -> Reservation:
    pool, holder = line["pool"], f"{socket.gethostname()}:{os.getpid()}"

    def look() -> Reservation | None:
        # After the first try, only looking: a try takes the write lock of SQLite.
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
        return f"another direct request of pool “{pool}” has just ended"
    if before.released_at is not None:
        return f"a queued task of pool “{pool}” goes before the next direct request"
    if before.taken_at is None:
        return f"another direct request waits for the next seat of pool “{pool}”"
    return f"another direct request runs in pool “{pool}” for {span(clock.now() - before.taken_at)}"


def _take(
    reservation: Reservation, line: Mapping[str, Any], initiator: Initiator, wait: Wait, keeper: Keeper
) -> None:
    wait.patience = _turn()

    def look() -> bool | None:
        if keeper.reason is not None:
            raise Lost("its place was given up before a seat became free: it was released, or lapsed")
        # A try takes the write lock of SQLite.
        if wait.is_on and connection.vendor == "sqlite" and not reservation.sees_room():
            return None
        return reservation.take(line, initiator=initiator, now=clock.now(), clock=clock.estimate) or None

    if wait.until(look) is None:
        pool = reservation.pool
        raise TimedOut(f"no seat of pool “{pool}” became free within {wait.seconds:g} s; {_who_runs(pool)}")


def _turn() -> float:
    return TURN_SECONDS if connection.vendor == "postgresql" else settings.JIM_POLL_SECONDS


def _who_runs(pool: str) -> str:
    names = WorkerTask.objects.processing().filter(pool=pool).order_by("claimed_at")
    named = [f"“{name}”" for name in names.values_list("name", flat=True)[:4]]
    if not named:
        return "none of its tasks runs, so a limit that it shares with others is full, or 0"
    return f"{', '.join(named[:3])}{' and more' if named[3:] else ''} still run"


def _held(reservation: Reservation, line: dict[str, Any]) -> Held:
    """As if it were a task that was claimed."""
    assert reservation.activity_id is not None
    task = WorkerTask(
        activity_id=reservation.activity_id,
        name=line["name"],
        isolation=line["isolation"],
        step=line,
        claimed_at=reservation.taken_at,
    )
    return Held.of(task)


def _perform(held: Held, keeper: Keeper) -> Finish:
    """A step that puts itself off waits in its seat: the caller waits for it too."""
    said = keeper.listen(held.activity_id)
    work, binding, nursery = held.work, bind([held]).get(held.pk), _nursery(os.getpid())
    with _heeding_ctrl_c(keeper):
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
    """One for all requests of this process: its second Python step finds a child that is ready."""
    env = {name: value for name, value in os.environ.items() if name not in WITHHELD}
    nursery = Nursery(env=env | {"JIM_KEYLESS": "1"})
    atexit.register(nursery.close)
    return nursery


@contextmanager
def _heeding_ctrl_c(keeper: Keeper) -> Iterator[None]:
    """Asks the step to stop, as a cancellation does: an exception in the middle of it would be its failure.

    The second time it is raised, for a function that does not listen.
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


def _record(reservation: Reservation, finish: Finish, keeper: Keeper) -> None:
    """While the seat is surely ours, an outcome waits for a database that is away."""
    is_doubtful = False
    outage = Outage(logger, "the outcome of a direct request is kept until the database is back")
    while True:
        try:
            keeper.stop()
            if _finish(reservation, finish) or (is_doubtful and _is_recorded(finish)):
                return
            raise Lost(
                "the seat of this request was given to others while it ran, so its outcome was not recorded: "
                f"activity {finish.task.activity_id} tells why"
            )
        except AWAY as error:
            if keeper.is_overdue:
                raise Lost("the database is away, so the outcome of this request was not recorded") from error
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
    """After an error at COMMIT."""
    ending = finish.ending()
    own = Activity.objects.filter(pk=ending.activity_id, status=ending.status)
    return own.filter(finished_at=ending.finished_at).exists()


class Wait:
    """Looks again whenever something has changed, until its time is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.patience: float = settings.JIM_POLL_SECONDS
        self.woken = threading.Event()
        self._deadline = time.monotonic() + seconds
        self._watch: Watch | None = None

    @property
    def is_on(self) -> bool:
        """Whether the first look found nothing."""
        return self._watch is not None

    def until(self, look: Callable[[], T | None]) -> T | None:
        """What it finds; None if it finds nothing in time."""
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
        """Does not wait for the thread of the watch, which may take half a second to notice."""
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
def kept(reservation: Reservation, wait: Wait, lease: Lease) -> Iterator[Keeper]:
    """Whatever ends the block, the seat is free afterwards; a request that is cut off counts as cancelled."""
    keeper = Keeper(reservation, lease, lost=wait.woken.set)
    try:
        yield keeper
    except BaseException:
        keeper.interrupt("cancel")
        with suppress(*AWAY):  # then the lease frees it
            keeper.stop()
            reservation.release(clock.now())
        raise


class Keeper:
    """Beats for a seat and writes what its step says, on a thread and a connection of its own."""

    def __init__(self, reservation: Reservation, lease: Lease, *, lost: Callable[[], object]) -> None:
        self.lease = lease
        self.reason: Reason | None = None
        self.context: Context | None = None
        self._reservation = reservation
        self._lost = lost
        self._said: Said | None = None
        self._outage = Outage(
            logger, "a beat of a direct request failed; its seat is kept until the lease ends"
        )
        self._beaten = lease.asked_at
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="direct-beat", daemon=True)
        self._thread.start()

    @property
    def is_overdue(self) -> bool:
        """Soon others may have the seat."""
        return not self.lease.is_good

    def listen(self, activity_id: int) -> Said:
        self._said = Said(activity_id, clock.estimate)
        return self._said

    def attend(self, context: Context) -> Context:
        """From now on this one is interrupted; at once, if the request was already."""
        self.context = context
        if self.reason is not None:
            context.interrupt(self.reason)
        return context

    def interrupt(self, reason: Reason) -> None:
        """The first reason counts."""
        self.reason = self.reason or reason
        if self.context is not None:
            self.context.interrupt(self.reason)

    def overrule(self) -> None:
        """However the step ends from now on, it was interrupted."""
        if self.context is not None:
            self.context.saw_interrupt = True

    def stop(self) -> None:
        """No more beats; the last words of the step are written."""
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
