"""One clock for all hosts: the database's."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from django.db import connection
from django.utils import timezone

SYNC_SECONDS = 30.0
_synced: tuple[float, datetime] | None = None


def now() -> datetime:
    """The database's time, carried forward between looks by this process's monotonic clock.

    SQLite lives in this process, so its clock is ours.
    """
    if connection.vendor == "postgresql" and (
        _synced is None or time.monotonic() - _synced[0] > SYNC_SECONDS
    ):
        sync()
    return estimate()


def estimate() -> datetime:
    """The same without ever asking the database, for threads that should have no connection of their own."""
    if _synced is None:
        return timezone.now()
    at, then = _synced
    return then + timedelta(seconds=time.monotonic() - at)


def sync() -> None:
    global _synced
    if connection.vendor != "postgresql":
        return
    connection.ensure_connection()  # which may take long, and would count as the way there
    before = time.monotonic()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (then,) = cursor.fetchone()
    _synced = ((before + time.monotonic()) / 2, then.astimezone(UTC))
