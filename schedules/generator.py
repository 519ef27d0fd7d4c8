"""Turns each nominal time into exactly one occurrence: the cursor moves in the same transaction."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from django.db import DatabaseError, transaction

from database.statements import AWAY, update_each
from database.wake import wake
from operations.initiator import Initiator

from .models import Backfill, Occurrence, Refused, Schedule, ScheduleQuerySet
from .models.occurrence import Automatic

PASSES_PER_TICK = 5
SCHEDULES_PER_PASS = 500
OCCURRENCES_PER_PASS = 5_000
BACKFILLS_PER_PASS = 100
BACKFILL_SECONDS = 0.25
logger = logging.getLogger(__name__)


def fill(now: datetime) -> None:
    """Set the cursor (`processed_until`) and `next_run_at` of the schedules that do not have a cursor yet."""
    while schedules := list(Schedule.objects.open().unfilled()[:SCHEDULES_PER_PASS]):
        for schedule in schedules:
            try:
                schedule.restart_cursor(now)
            except Exception as error:
                schedule.processed_until = now
                schedule.mark_broken(error)
                logger.error("schedule %s has a broken spec: %s", schedule, error)
        update_each(
            Schedule,
            ("processed_until", "next_run_at", "spec_error"),
            [(s.pk, s.processed_until, s.next_run_at, s.spec_error) for s in schedules],
            where="t.processed_until IS NULL",
        )


def generate(now: datetime) -> None:
    """Generate the occurrences of times up to `now`, in a limited number of passes.

    The next tick generates the rest. Occurrences start between ticks, so schedules that are far behind do not
    delay the others.
    """
    size = SCHEDULES_PER_PASS
    for _ in range(PASSES_PER_TICK):
        if not Schedule.objects.due(now).exists():
            return
        done = _generate_some(now, size)
        if not done:
            return
        # A pass handles only few schedules if each has missed many times: take at most twice as many next.
        size = min(2 * done, SCHEDULES_PER_PASS)
    if Schedule.objects.due(now).exists():
        wake("jim_schedules")


def backfill(now: datetime) -> None:
    """Generate a slice of occurrences for each backfill that is due, for a limited time per tick."""
    due = Backfill.objects.due(now)
    rows = list(due.order_by("slice_at", "pk").only("pk", "schedule")[:BACKFILLS_PER_PASS])
    enough = time.monotonic() + BACKFILL_SECONDS
    for row in rows:
        try:
            _generate_or_cancel(row, now)
        except AWAY:
            raise
        except Exception:
            logger.exception("backfill %s can neither go on nor be cancelled", row.pk)
        if time.monotonic() > enough:
            break
    if rows and due.exists():
        wake("jim_schedules")


def _generate_or_cancel(row: Backfill, now: datetime) -> None:
    try:
        row.generate(now)
    except AWAY:
        raise
    except Exception as error:
        logger.error("backfill %s cannot go on: %s", row.pk, error)
        reason = f"The backfill cannot continue: {error}"
        row.cancel(initiator=Initiator.system("backfill"), now=now, reason=reason)


def end_snoozes(now: datetime) -> None:
    for pk in list(Schedule.objects.snoozed_until(now).values_list("pk", flat=True)[:SCHEDULES_PER_PASS]):
        try:
            _end_snooze(pk, now)
        except AWAY:
            raise
        except Refused as error:
            logger.info("a snooze goes on until the next tick: %s", error)
        except Exception:
            logger.exception("the snooze of schedule %s cannot end; the next tick tries again", pk)


def _end_snooze(pk: int, now: datetime) -> None:
    with transaction.atomic():
        schedule = Schedule.objects.snoozed_until(now).lock(skip_locked=True).filter(pk=pk).first()
        if schedule is not None:
            schedule.resume(initiator=Initiator.system("snooze"), now=now)


def _generate_some(now: datetime, size: int) -> int:
    """Generate one batch, and return the number of schedules that were handled.

    If the database refuses the batch, generate its schedules one by one, and mark those that are refused as
    broken.
    """
    try:
        with transaction.atomic():
            return _generate_batch(_least_behind_first(now), size, now)
    except AWAY:
        raise
    except DatabaseError:
        logger.exception("a batch of due schedules was refused; trying them one by one")
    due = list(_least_behind_first(now).values_list("pk", flat=True)[:size])
    return sum(_generate_one(pk, now) for pk in due)


def _least_behind_first(now: datetime) -> ScheduleQuerySet:
    """Return the due schedules, the least late first, so that punctual schedules do not wait for others."""
    return Schedule.objects.due(now).order_by("-next_run_at")


def _generate_one(pk: int, now: datetime) -> int:
    try:
        with transaction.atomic():
            return _generate_batch(Schedule.objects.due(now).filter(pk=pk), 1, now)
    except AWAY:
        raise
    except DatabaseError as error:
        logger.exception("schedule %s cannot be generated", pk)
        Schedule.objects.due(now).filter(pk=pk).update(
            spec_error=f"The database refused the times of the schedule: {error}"[:500], next_run_at=None
        )
        return 1


def _generate_batch(due: ScheduleQuerySet, size: int, now: datetime) -> int:
    schedules = list(due.lock(skip_locked=True).only(*Schedule.GENERATING)[:size])
    occurrences: list[Automatic] = []
    for done, schedule in enumerate(schedules):
        if len(occurrences) > OCCURRENCES_PER_PASS:
            schedules = schedules[:done]
            break
        try:
            occurrences += schedule.generate(now)
        except Exception as error:
            schedule.mark_broken(error)
            logger.error("schedule %s has a broken spec: %s", schedule, error)
    Occurrence.objects.add(occurrences, now=now)
    _drop_oldest(schedules, now)
    moved = Schedule.GENERATED
    update_each(Schedule, moved, [[s.pk, *(getattr(s, name) for name in moved)] for s in schedules])
    return len(schedules)


def _drop_oldest(schedules: list[Schedule], now: datetime) -> None:
    crowded = Occurrence.objects.crowding([schedule.pk for schedule in schedules])
    for schedule in schedules:
        if schedule.pk in crowded:
            schedule.drop_oldest(now)
