"""The scheduler's loop. It ticks when something is due or a lease ends, and at least every half lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection

from database import clock
from database.outage import Outage
from database.statements import AWAY, fetch, instant
from database.wake import Watch, wake
from execution.children import lifeline
from execution.models import Chore, Execution
from schedules.generator import backfill, end_snoozes, fill, generate

from . import recovery
from .companions import BackgroundThreads
from .invoker import invoke
from .running import RETRY_SECONDS, wait_for_database

logger = logging.getLogger(__name__)

LIFELINE_SECONDS = 1.0
PROBE_SECONDS = 0.05
HELD_SECONDS, LONGEST_HELD_SECONDS = 0.1, 0.5
TIMEOUTS_PER_TICK = 100
LATE_PER_TICK = 100


def time_out(now: datetime) -> None:
    overtime = Execution.objects.overtime(now).order_by("timeout_at")[:TIMEOUTS_PER_TICK]
    if sum(_time_out(execution, now) for execution in overtime) == TIMEOUTS_PER_TICK:
        wake("jim_schedules")  # there may be more, for which no later time would wake the loop


def _time_out(execution: Execution, now: datetime) -> bool:
    try:
        return execution.time_out(now=now)
    except AWAY:
        raise
    except Exception:
        logger.exception("execution %s cannot be stopped; the next tick tries again", execution.pk)
        return False


def notice_late(now: datetime) -> None:
    """Report each late execution once, however long it continues to run."""
    if Execution.objects.notice_late(now=now, limit=LATE_PER_TICK) == LATE_PER_TICK:
        wake("jim_schedules")


Part = Callable[[datetime], object]

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
# The rows that a tick settles. Each probe reads one index, up to its first row. Statuses are written as
# literals: SQLite uses an index with a condition only if the statement shows that the condition holds.
_due: list[str] = [
    "SELECT 1 FROM schedules_schedule WHERE next_run_at <= %(now)s",
    "SELECT 1 FROM schedules_schedule WHERE processed_until IS NULL AND status <> 'closed'",
    "SELECT 1 FROM schedules_schedule WHERE paused_until <= %(now)s AND status = 'paused'",
    "SELECT 1 FROM schedules_occurrence WHERE status = 'pending' AND due_at <= %(now)s",
    "SELECT 1 FROM schedules_backfill WHERE status = 'open' AND slice_at <= %(now)s",
    # Ended, and not counted by its schedule yet.
    "SELECT 1 FROM execution_execution "
    "WHERE accounted_at IS NULL AND schedule_id IS NOT NULL AND NOT (status = 'in_progress')",
    # Running for longer than its schedule allows.
    "SELECT 1 FROM execution_execution "
    "WHERE status = 'in_progress' AND cancel_requested_at IS NULL AND timeout_at <= %(now)s",
    # After its deadline, and not reported yet.
    "SELECT 1 FROM execution_execution "
    "WHERE status = 'in_progress' AND late_noticed_at IS NULL AND deadline_at <= %(now)s",
]
# When the next of these rows becomes due. Each query reads one index, from `now` to the next row.
_next_times: list[str] = [
    "SELECT min(next_run_at) FROM schedules_schedule WHERE next_run_at > %(now)s",
    "SELECT min(paused_until) FROM schedules_schedule WHERE paused_until > %(now)s",
    "SELECT min(due_at) FROM schedules_occurrence WHERE status = 'pending' AND due_at > %(now)s",
    "SELECT min(slice_at) FROM schedules_backfill WHERE status = 'open' AND slice_at > %(now)s",
    "SELECT min(timeout_at) FROM execution_execution "
    "WHERE status = 'in_progress' AND cancel_requested_at IS NULL AND timeout_at > %(now)s",
    "SELECT min(deadline_at) FROM execution_execution "
    "WHERE status = 'in_progress' AND late_noticed_at IS NULL AND deadline_at > %(now)s",
]


def register(settle: Part, *, due: str, next_at: str) -> None:
    """Register a function that handles rows of another app in each tick; call this in `AppConfig.ready`.

    `due` is SQL that selects the rows that are due, and `next_at` is SQL that selects the time at which the
    next row becomes due; both use `%(now)s` for the time of the tick.
    """
    SETTLING.append(settle)
    _due.append(due)
    _next_times.append(next_at)


def register_recovery(recover: Part) -> None:
    RECOVERING.append(recover)


def register_opening(once: Part) -> None:
    """Register a function that each scheduler calls before its first tick."""
    OPENING.append(once)


def tick(now: datetime, *, recovering: bool = True) -> bool:
    """Run all parts of a tick in order; return whether all succeeded.

    An error in one part does not stop the others. Parts that handle due rows run only if something is due,
    and parts that recover lost work run only if `recovering`.
    """
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
    """Return whether a tick has anything to do, with one statement of a few index lookups."""
    return bool(_ask(f"SELECT {' OR '.join(f'EXISTS ({probe})' for probe in _due)}", now)[0])


def next_due(now: datetime) -> datetime | None:
    """Return when the next row becomes due, apart from rows that are due already; None if there is none."""
    times = _ask(f"SELECT {', '.join(f'({next_at})' for next_at in _next_times)}", now)
    return min((instant(at) for at in times if at is not None), default=None)


def _ask(sql: str, now: datetime) -> tuple[Any, ...]:
    return fetch(sql, {"now": connection.ops.adapt_datetimefield_value(now)})[0]


class SchedulerLoop:
    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.woken = threading.Event()
        self.watch = Watch("jim_schedules", self.woken.set)
        self.background = BackgroundThreads("scheduler", is_well=self._is_well)
        self.ticked = float("-inf")
        self.recovered = self.looked_for_dead = float("-inf")
        self.recovers_after = 0.0
        self.patience = 0.0
        self.is_open = False
        self.outage = Outage(
            logger, "the database is unavailable: executions that become due meanwhile start when it is back"
        )

    def run(self) -> None:
        wait_for_database(self.stopping)
        self.watch.start()
        self.background.start()
        logger.info("scheduler is ready")
        try:
            while not self.stopping.is_set():
                self._pass()
        finally:
            self.watch.stop()
            self.background.stop()
            logger.info("scheduler stopped")

    def stop(self) -> None:
        self.stopping.set()
        self.woken.set()

    def _pass(self) -> None:
        """Tick once, then sleep until something is due."""
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
        """Do everything that is due. Recovery, which looks at everything that runs, is done less often."""
        recovering = time.monotonic() - self.recovered > settings.JIM_LEASE_SECONDS / 12
        if not self.is_open:
            self.is_open = _each(OPENING, clock.now())
        self.ticked_at, began = clock.now(), time.monotonic()
        is_well = tick(self.ticked_at, recovering=False)
        if recovering:
            # Read the clock again after settling: no loss may be dated before its worker was found dead.
            is_well = _each(RECOVERING, clock.now()) and is_well
        if is_well:
            self.ticked = time.monotonic()
            self.background.wake()
        if recovering:
            now = clock.now()
            self.recovers_after = (recovery.next_look(now) - now).total_seconds()
            self.recovered = time.monotonic()
            Chore.objects.note_tick_took(self.recovered - began)

    def _is_well(self) -> bool:
        """Return whether a tick has succeeded recently; there should be one at least every half lease."""
        return time.monotonic() - self.ticked < settings.JIM_LEASE_SECONDS

    def _sleep(self) -> bool:
        """Sleep until the database changes or the next tick is due; return whether the database changed."""
        # Counted from the last tick, so that rows that have become due since then are not missed.
        due, now = next_due(self.ticked_at), clock.now()
        tick_at = self.recovered + self.recovers_after
        due_at = time.monotonic() + (due - now).total_seconds() if due else tick_at
        self.patience = min(max(2 * self.patience, HELD_SECONDS), LONGEST_HELD_SECONDS)
        if is_due(self.ticked_at):
            # Another process has locked what is due, often a worker that ends executions of the schedule.
            due_at = min(due_at, time.monotonic() + self.patience)
        else:
            self.patience = 0.0
        while not self.stopping.is_set():
            left = min(due_at, tick_at) - time.monotonic()
            if left <= 0:
                return False
            # Checked even while frequent changes keep waking the loop.
            if self._finds_dead():
                self.recovered = float("-inf")
                return False
            if self.woken.wait(min(left, LIFELINE_SECONDS)):
                self.stopping.wait(PROBE_SECONDS)
                self.woken.clear()
                return True
        return False

    def _finds_dead(self) -> bool:
        """Return whether a worker is proven dead; check at most once a second."""
        if time.monotonic() - self.looked_for_dead < LIFELINE_SECONDS:
            return False
        self.looked_for_dead = time.monotonic()
        return any(lifeline.proven_dead())
