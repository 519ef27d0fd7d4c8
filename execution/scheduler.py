"""The scheduler's loop: ticks when something is due, and at the latest every half lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Min, QuerySet

from activities import clock
from activities.statements import AWAY, fetch
from activities.wake import Watch
from schedules.generator import end_snoozes, fill, generate
from schedules.models import Occurrence, Schedule

from . import lifeline, recovery
from .invoker import invoke
from .loops import RETRY_SECONDS, wait_for_database
from .models import Execution

logger = logging.getLogger(__name__)

LIFELINE_SECONDS = 1.0
PROBE_SECONDS = 0.05
_SOME_TIME = datetime(1, 1, 2, tzinfo=UTC)


SETTLING: tuple[Callable[[datetime], object], ...] = (fill, generate, end_snoozes, invoke)
RECOVERING: tuple[Callable[[datetime], object], ...] = (
    recovery.bury_proven_dead,
    recovery.bury_expired,
    recovery.recover,
)


def tick(now: datetime, *, recovering: bool = True) -> None:
    """What a scheduler does, in this order; trouble in one part never stops the others."""
    for part in (*(SETTLING if is_due(now) else ()), *(RECOVERING if recovering else ())):
        try:
            part(now)
        except AWAY:
            raise
        except Exception:
            logger.exception("%s failed; the next tick tries again", part.__name__)


def is_due(now: datetime) -> bool:
    """One statement of a few index probes: is there anything for a tick to do?"""
    sql, params = _probe(connection.vendor)
    at = connection.ops.adapt_datetimefield_value(now)
    return bool(fetch(sql, [at if param == _SOME_TIME else param for param in params])[0][0])


@cache
def _probe(vendor: str) -> tuple[str, list[Any]]:
    """Put together once: writing these five queries takes longer than answering them."""
    probes = (
        Schedule.objects.due(_SOME_TIME),
        Occurrence.objects.due(_SOME_TIME),
        Execution.objects.unaccounted(),
        Schedule.objects.open().unfilled(),
        Schedule.objects.snoozed_until(_SOME_TIME),
    )
    compiled = [rows.values("pk").query.sql_with_params() for rows in probes]
    stored = connection.ops.adapt_datetimefield_value(_SOME_TIME)
    params = [_SOME_TIME if param == stored else param for _, own in compiled for param in own]
    return f"SELECT {' OR '.join(f'EXISTS ({sql})' for sql, _ in compiled)}", params


def next_due(now: datetime) -> datetime | None:
    """When the next thing becomes due; what is due already but held by somebody else does not count."""
    times = (
        _earliest(Schedule.objects.all(), "next_run_at", now),
        _earliest(Occurrence.objects.pending(), "due_at", now),
        _earliest(Schedule.objects.all(), "paused_until", now),
    )
    return min((at for at in times if at is not None), default=None)


def _earliest(rows: QuerySet[Schedule] | QuerySet[Occurrence], field: str, now: datetime) -> datetime | None:
    earliest: datetime | None = rows.filter(**{f"{field}__gt": now}).aggregate(at=Min(field))["at"]
    return earliest


class SchedulerLoop:
    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.woken = threading.Event()
        self.watch = Watch("jim_schedules", self.woken.set)
        self.recovered = float("-inf")

    def run(self) -> None:
        wait_for_database(self.stopping)
        self.watch.start()
        logger.info("scheduler is ready")
        try:
            while not self.stopping.is_set():
                self._pass()
        finally:
            self.watch.stop()
            logger.info("scheduler stopped")

    def stop(self) -> None:
        self.stopping.set()
        self.woken.set()

    def _pass(self) -> None:
        """One tick, then sleep until something is due."""
        try:
            self._tick()
            while not self.stopping.is_set() and self._sleep() and not is_due(clock.now()):
                pass
        except AWAY as error:
            logger.warning("the database is away, trying again: %s", error)
            connection.close()
            self.stopping.wait(RETRY_SECONDS)

    def _tick(self) -> None:
        """Recovery looks at all that is running, so it is not repeated for every time that becomes due."""
        recovering = time.monotonic() - self.recovered > settings.JIM_LEASE_SECONDS / 12
        self.ticked_at = clock.now()
        tick(self.ticked_at, recovering=recovering)
        if recovering:
            self.recovered = time.monotonic()

    def _sleep(self) -> bool:
        """Until something changed (True), or a tick is due for certain (False)."""
        # Seen from the tick: what has become due since then must not fall between the two.
        due, now = next_due(self.ticked_at), clock.now()
        tick_at = self.recovered + settings.JIM_LEASE_SECONDS / 2
        due_at = time.monotonic() + (due - now).total_seconds() if due else tick_at
        while not self.stopping.is_set():
            left = min(due_at, tick_at) - time.monotonic()
            if left <= 0:
                return False
            if self.woken.wait(min(left, LIFELINE_SECONDS)):
                self.stopping.wait(PROBE_SECONDS)
                self.woken.clear()
                return True
            if any(lifeline.proven_dead()):
                self.recovered = float("-inf")
                return False
        return False
