"""Wakes sleeping loops after changes in the database: NOTIFY on PostgreSQL, `data_version` on SQLite."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from django.db import connection, connections

from .outage import Outage

Channel = Literal["jim_tasks", "jim_schedules"]
logger = logging.getLogger(__name__)


def wake(channel: Channel) -> None:
    """Notify the listeners of a channel when the current transaction commits, but only once per transaction.

    SQLite needs no notification, because every commit changes `data_version`.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [channel])


class Watch:
    """A thread that calls `changed()` soon after another connection has committed a change."""

    # Seconds between two checks of SQLite: after recent changes, and otherwise.
    BUSY_SECONDS, QUIET_SECONDS = 0.003, 0.03
    GOING_ON_SECONDS = 0.1

    def __init__(self, channel: Channel, changed: Callable[[], None]) -> None:
        self.channel = channel
        self.changed = changed
        self.stopping = threading.Event()
        self.outage = Outage(
            logger, "notifications are not received while the database is away, so loops poll for changes"
        )
        self.thread = threading.Thread(target=self._run, name=f"watch-{channel}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(timeout=2)

    def _run(self) -> None:
        look = self._watch_postgresql if connection.vendor == "postgresql" else self._watch_sqlite
        while not self.stopping.is_set():
            try:
                look()
            except Exception as error:
                # The loops poll as well, so a broken watch costs latency, not correctness.
                self.outage.note(error)
                self.stopping.wait(1)
        connections.close_all()

    def _watch_postgresql(self) -> None:
        connection.ensure_connection()
        try:
            raw: Any = connection.connection
            with connection.wrap_database_errors:
                raw.execute(f"LISTEN {self.channel}")
                self.outage.is_over()
                self.changed()
                while not self.stopping.is_set():
                    for _ in raw.notifies(timeout=0.5, stop_after=1):
                        self.changed()
        finally:
            connection.close()

    def _watch_sqlite(self) -> None:
        name = str(connection.settings_dict["NAME"])
        uri = name.startswith("file:")
        connected = contextlib.closing(sqlite3.connect(name, uri=uri, isolation_level=None))
        with connection.wrap_database_errors, connected as raw:
            before, quiet_from = None, 0.0
            while not self.stopping.is_set():
                version = raw.execute("PRAGMA data_version").fetchone()[0]
                self.outage.is_over()
                if version != before:
                    before, quiet_from = version, time.monotonic() + self.GOING_ON_SECONDS
                    self.changed()
                is_quiet = time.monotonic() > quiet_from
                time.sleep(self.QUIET_SECONDS if is_quiet else self.BUSY_SECONDS)
