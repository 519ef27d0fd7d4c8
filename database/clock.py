"""The clock that all hosts share, which is the clock of the database."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.utils import timezone

from text.words import span

# A larger difference confuses people who compare logs, and programs that compare times.
MOST_SKEW = timedelta(seconds=1)
SYNC_SECONDS = 30.0
QUICK_SECONDS = 0.02
LOOKS = 3
_synced: tuple[float, datetime] | None = None


def now() -> datetime:
    """Return the database's time, which is read at most every 30 seconds.

    In between, the time is calculated with this process's monotonic clock. SQLite runs in this process, so
    its clock is that of the host.
    """
    if connection.vendor == "postgresql" and (
        _synced is None or time.monotonic() - _synced[0] > SYNC_SECONDS
    ):
        sync()
    return estimate()


def estimate() -> datetime:
    """Estimate the time that `now` would return, without a query, for threads without a connection."""
    if _synced is None:
        return timezone.now()
    at, then = _synced
    return then + timedelta(seconds=time.monotonic() - at)


def skew() -> timedelta | None:
    """Return how far this host's clock is ahead of the database's, or None if it has not been measured."""
    return None if _synced is None else timezone.now() - estimate()


def trouble(ahead: timedelta) -> str:
    """Return a clock skew in words, or an empty string if the skew is too small to matter."""
    if abs(ahead) <= MOST_SKEW:
        return ""
    return f"{span(abs(ahead))} {'ahead of' if ahead > timedelta(0) else 'behind'} the database's"


def sync() -> None:
    """Read the database's clock. If the query takes long, repeat it, and keep the fastest query's result.

    A slow query gives an inaccurate time: if the process was suspended during the query, `now` would return
    wrong times until the next `sync`. With SQLite, this function does nothing.
    """
    global _synced
    if connection.vendor != "postgresql":
        return
    connection.ensure_connection()  # connecting can take long, and must not count as part of the query
    looks = [_look()]
    while looks[-1][0] > QUICK_SECONDS and len(looks) < LOOKS:
        looks.append(_look())
    _, at, then = min(looks)
    _synced = (at, then)


def _look() -> tuple[float, float, datetime]:
    """Query the database's time. Return the duration, the monotonic time halfway through, and the result."""
    before = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (then,) = cursor.fetchone()
    after = time.monotonic()
    return after - before, (before + after) / 2, then.astimezone(UTC)
