"""The scheduler's loop: ticks when something is due, a lease ends, and at the latest every half lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet

from database import clock
from database.outage import Outage
from database.statements import AWAY, fetch, instant
from database.wake import Watch, wake
from execution.children import lifeline
from execution.models import Chore, Execution
from schedules.generator import backfill, end_snoozes, fill, generate
from schedules.models import Backfill, Occurrence, Schedule

from . import recovery
from .companions import Company
from .invoker import invoke
from .running import RETRY_SECONDS, wait_for_database

logger = logging.getLogger(__name__)

LIFELINE_SECONDS = 1.0
PROBE_SECONDS = 0.05
HELD_SECONDS, LONGEST_HELD_SECONDS = 0.1, 0.5
TIMEOUTS_PER_TICK = 100
LATE_PER_TICK = 100
_SOME_TIME = datetime(1, 1, 2, tzinfo=UTC)


def time_out(now: datetime) -> None:
    overtime = Execution.objects.overtime(now).order_by("timeout_at")[:TIMEOUTS_PER_TICK]
    if sum(_time_out(execution, now) for execution in overtime) == TIMEOUTS_PER_TICK:
        wake("jim_schedules")  # there may be more, which no time that is still to come would tell of


def _time_out(execution: Execution, now: datetime) -> bool:
    try:
        return execution.time_out(now=now)
    except AWAY:
        raise
    except Exception:
        logger.exception("execution %s cannot be stopped; the next tick tries again", execution.pk)
        return False


def notice_late(now: datetime) -> None:
    """Each is told of once, however long it goes on."""
    if Execution.objects.notice_late(now=now, limit=LATE_PER_TICK) == LATE_PER_TICK:
        wake("jim_schedules")


Part = Callable[[datetime], object]
Times = Callable[[], tuple[QuerySet[Any], str]]

SETTLING: list[Part] = [
    fill,
    generate,
    backfill,
    end_snoozes,
    time_out,
    notice_late,
    invoke,
]
RECOVERING: list[Part] = [recovery.bury_proven_dead, recovery.bury_expired, recovery.recover]
OPENING: list[Part] = []
_probed: list[Callable[[datetime], QuerySet[Any]]] = []
_foreseen: list[Times] = []


def register(settle: Part, *, due: Callable[[datetime], QuerySet[Any]], times: Times) -> None:
    """What an app settles in each tick that finds some of its rows `due`; `times` says when the next will be.

    Call it in `AppConfig.ready`.
    """
    SETTLING.append(settle)
    _probed.append(due)
    _foreseen.append(times)


def register_recovery(recover: Part) -> None:
    RECOVERING.append(recover)


def register_opening(once: Part) -> None:
    """Done by each scheduler before its first tick."""
    OPENING.append(once)


def tick(now: datetime, *, recovering: bool = True) -> bool:
    """What a scheduler does, in this order; trouble in one part never stops the others. True: none had it."""
    return _each((*(SETTLING if is_due(now) else ()), *(RECOVERING if recovering else ())), now)


def _each(parts: Sequence[Part], now: datetime) -> bool:
    is_well = True
    for part in parts:
        try:
            part(now)
        except AWAY:
            raise
        except Exception:
            logger.exception("%s failed; the next tick tries again", getattr(part, "__name__", part))
            is_well = False
    return is_well


def is_due(now: datetime) -> bool:
    """One statement of a few index probes: is there anything for a tick to do?"""
    return bool(_ask(_probe, now)[0])


def next_due(now: datetime) -> datetime | None:
    """When the next thing becomes due; what is due already but held by somebody else does not count."""
    return min((instant(at) for at in _ask(_outlook, now) if at is not None), default=None)


def _ask(question: Callable[[str], tuple[str, list[Any]]], now: datetime) -> tuple[Any, ...]:
    sql, params = question(connection.vendor)
    at = connection.ops.adapt_datetimefield_value(now)
    return fetch(sql, [at if param == _SOME_TIME else param for param in params])[0]


@cache
def _probe(vendor: str) -> tuple[str, list[Any]]:
    """Put together once: writing these queries takes longer than answering them."""
    probes = (
        Schedule.objects.due(_SOME_TIME),
        Occurrence.objects.due(_SOME_TIME),
        Execution.objects.unaccounted(),
        Schedule.objects.open().unfilled(),
        Schedule.objects.snoozed_until(_SOME_TIME),
        Backfill.objects.due(_SOME_TIME),
        Execution.objects.overtime(_SOME_TIME),
        Execution.objects.newly_late(_SOME_TIME),
        *(due(_SOME_TIME) for due in _probed),
    )
    compiled = [_compiled(rows.values("pk")) for rows in probes]
    return f"SELECT {' OR '.join(f'EXISTS ({sql})' for sql, _ in compiled)}", _params(compiled)


@cache
def _outlook(vendor: str) -> tuple[str, list[Any]]:
    times: tuple[tuple[QuerySet[Any], str], ...] = (
        (Schedule.objects.all(), "next_run_at"),
        (Occurrence.objects.pending(), "due_at"),
        (Schedule.objects.all(), "paused_until"),
        (Backfill.objects.open(), "slice_at"),
        (Execution.objects.in_progress().filter(cancel_requested_at=None), "timeout_at"),
        (Execution.objects.in_progress().filter(late_noticed_at=None), "deadline_at"),
        *(times() for times in _foreseen),
    )
    compiled = [
        _compiled(rows.filter(**{f"{field}__gt": _SOME_TIME}).order_by(field).values(field)[:1])
        for rows, field in times
    ]
    return f"SELECT {', '.join(f'({sql})' for sql, _ in compiled)}", _params(compiled)


def _compiled(rows: QuerySet[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    return rows.query.sql_with_params()


def _params(compiled: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
    stored = connection.ops.adapt_datetimefield_value(_SOME_TIME)
    return [_SOME_TIME if param == stored else param for _, own in compiled for param in own]


class SchedulerLoop:
    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.woken = threading.Event()
        self.watch = Watch("jim_schedules", self.woken.set)
        self.company = Company("scheduler", is_well=self._is_well)
        self.ticked = float("-inf")
        self.recovered = self.looked_for_dead = float("-inf")
        self.recovers_after = 0.0
        self.patience = 0.0
        self.is_open = False
        self.outage = Outage(
            logger, "the database is away: what becomes due meanwhile starts when it is back"
        )

    def run(self) -> None:
        wait_for_database(self.stopping)
        self.watch.start()
        self.company.start()
        logger.info("scheduler is ready")
        try:
            while not self.stopping.is_set():
                self._pass()
        finally:
            self.watch.stop()
            self.company.stop()
            logger.info("scheduler stopped")

    def stop(self) -> None:
        self.stopping.set()
        self.woken.set()

    def _pass(self) -> None:
        """One tick, then sleep until something is due."""
        try:
            self._tick()
            self.outage.is_over()
            while not self.stopping.is_set() and self._sleep() and not is_due(clock.now()):
                pass
        except AWAY as error:
            self.outage.note(error)
            connection.close()
            self.stopping.wait(RETRY_SECONDS)

    def _tick(self) -> None:
        """Recovery looks at all that is running, so it is not repeated for every time that becomes due."""
        recovering = time.monotonic() - self.recovered > settings.JIM_LEASE_SECONDS / 12
        if not self.is_open:
            self.is_open = _each(OPENING, clock.now())
        self.ticked_at, began = clock.now(), time.monotonic()
        is_well = tick(self.ticked_at, recovering=False)
        if recovering:
            # Settling took its time: nothing may be recorded as lost before its worker was found dead.
            is_well = _each(RECOVERING, clock.now()) and is_well
        if is_well:
            self.ticked = time.monotonic()
            self.company.wake()
        if recovering:
            now = clock.now()
            self.recovers_after = (recovery.next_look(now) - now).total_seconds()
            self.recovered = time.monotonic()
            Chore.objects.note_tick_took(self.recovered - began)

    def _is_well(self) -> bool:
        """A tick comes every half lease at the latest."""
        return time.monotonic() - self.ticked < settings.JIM_LEASE_SECONDS

    def _sleep(self) -> bool:
        """Until something changed (True), or a tick is due for certain (False)."""
        # Seen from the tick: what has become due since then must not fall between the two.
        due, now = next_due(self.ticked_at), clock.now()
        tick_at = self.recovered + self.recovers_after
        due_at = time.monotonic() + (due - now).total_seconds() if due else tick_at
        self.patience = min(max(2 * self.patience, HELD_SECONDS), LONGEST_HELD_SECONDS)
        if is_due(self.ticked_at):
            # Somebody else held it: a worker that ends executions of this schedule does so most of the time.
            due_at = min(due_at, time.monotonic() + self.patience)
        else:
            self.patience = 0.0
        while not self.stopping.is_set():
            left = min(due_at, tick_at) - time.monotonic()
            if left <= 0:
                return False
            # Also while so much changes that it is woken all the time.
            if self._finds_dead():
                self.recovered = float("-inf")
                return False
            if self.woken.wait(min(left, LIFELINE_SECONDS)):
                self.stopping.wait(PROBE_SECONDS)
                self.woken.clear()
                return True
        return False

    def _finds_dead(self) -> bool:
        """Looks once a second."""
        if time.monotonic() - self.looked_for_dead < LIFELINE_SECONDS:
            return False
        self.looked_for_dead = time.monotonic()
        return any(lifeline.proven_dead())
