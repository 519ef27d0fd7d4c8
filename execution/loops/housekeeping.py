"""Chores that one process does on behalf of all. Apps register them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings

from activities.models import Activity, ActivityItem
from database.statements import AWAY
from execution.models import Chore, Execution, Reservation, Worker
from schedules.models import Backfill, Occurrence

BATCH = 500
ITEMS_AT_ONCE = 5_000
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Duty:
    """A chore that is done in small batches.

    `once` does one batch and returns its size. If the size is less than `BATCH`, nothing is left to do.
    """

    name: str
    every: timedelta
    once: Callable[[datetime], int]


duties: list[Duty] = []


def register(name: str, *, every: timedelta, once: Callable[[datetime], int]) -> None:
    duties.append(Duty(name, every, once))


def keep_house(now: datetime) -> bool:
    """Do one batch of each chore that is due. Return whether a chore has more to do immediately."""
    is_more = False
    for duty in duties:
        try:
            if Chore.objects.take(duty.name, every=duty.every, now=now) and duty.once(now) >= BATCH:
                Chore.objects.filter(name=duty.name).update(last_run_at=None)
                is_more = True
        except AWAY:
            raise
        except Exception:
            logger.exception("the chore %s failed; it is tried again later", duty.name)
    return is_more


def prune_history(now: datetime) -> int:
    return Execution.objects.prune(before=now - timedelta(days=settings.JIM_RETENTION_DAYS), limit=BATCH)


def prune_items(now: datetime) -> int:
    """Delete old items before their activities are pruned: an activity can have millions of items."""
    oldest = ActivityItem.objects.order_by("pk").values_list("pk", "created_at")[:ITEMS_AT_ONCE]
    before = now - timedelta(days=settings.JIM_RETENTION_DAYS)
    old = [pk for pk, created_at in oldest if created_at < before]
    return ActivityItem.objects.filter(pk__in=old).delete()[0]


def prune_single_jobs(now: datetime) -> int:
    return Activity.objects.prune_single(
        before=now - timedelta(days=settings.JIM_RETENTION_DAYS), limit=BATCH
    )


def prune_occurrences(now: datetime) -> int:
    return Occurrence.objects.prune(before=now - timedelta(days=settings.JIM_RETENTION_DAYS), limit=BATCH)


def prune_backfills(now: datetime) -> int:
    return Backfill.objects.prune(before=now - timedelta(days=settings.JIM_RETENTION_DAYS), limit=BATCH)


def prune_administrative(now: datetime) -> int:
    before = now - timedelta(days=settings.JIM_AUDIT_DAYS)
    return Activity.objects.prune_administrative(before=before, limit=BATCH)


def prune_workers(now: datetime) -> int:
    return Worker.objects.prune(before=now - timedelta(days=1), limit=BATCH)


def prune_reservations(now: datetime) -> int:
    return Reservation.objects.prune(before=now - timedelta(days=1), limit=BATCH)


def register_own() -> None:
    for name, once in (
        ("items", prune_items),
        ("history", prune_history),
        ("single jobs", prune_single_jobs),
        ("occurrences", prune_occurrences),
        ("backfills", prune_backfills),
        ("administrative", prune_administrative),
        ("workers", prune_workers),
        ("reservations", prune_reservations),
    ):
        register(name, every=timedelta(hours=6), once=once)
