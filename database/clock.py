"""One clock for all hosts: the database's."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.utils import timezone

from text.words import span

# More than that confuses people who compare logs, and programs that compare times.
MOST_SKEW = timedelta(seconds=1)
SYNC_SECONDS = 30.0
QUICK_SECONDS = 0.02
LOOKS = 3
_synced: tuple[float, datetime] | None = None


def now() -> datetime:
    """Return the database's time, carried forward between looks by this process's monotonic clock.

    SQLite lives in this process, so its clock is ours.
    """
    if connection.vendor == "postgresql" and (
        _synced is None or time.monotonic() - _synced[0] > SYNC_SECONDS
    ):
        sync()
    return estimate()


def estimate() -> datetime:
    """Return the same without asking the database, for threads that should not open a connection."""
    if _synced is None:
        return timezone.now()
    at, then = _synced
    return then + timedelta(seconds=time.monotonic() - at)


def skew() -> timedelta | None:
    """How far this host's clock is ahead of the database's, by the last look; None where they are one."""
    return None if _synced is None else timezone.now() - estimate()


def trouble(ahead: timedelta) -> str:
    """Describe a skew in words; empty if it is too small to matter."""
    if abs(ahead) <= MOST_SKEW:
        return ""
    return f"{span(abs(ahead))} {'ahead of' if ahead > timedelta(0) else 'behind'} the database's"


def sync() -> None:
    """Ask again if the answer took long: a process that was stopped while asking would be late ever since."""
    global _synced
    if connection.vendor != "postgresql":
        return
    connection.ensure_connection()  # which may take long, and would count as the way there
    looks = [_look()]
    while looks[-1][0] > QUICK_SECONDS and len(looks) < LOOKS:
        looks.append(_look())
    _, at, then = min(looks)
    _synced = (at, then)


def _look() -> tuple[float, float, datetime]:
    """How long asking took, and the time half-way: on this process's clock, and on the database's."""
    before = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (then,) = cursor.fetchone()
    after = time.monotonic()
    return after - before, (before + after) / 2, then.astimezone(UTC)
