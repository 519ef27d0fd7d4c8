from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from database import clock
from schedules.management.usable_database import WAYS_OUT, absent_database
from text.words import span

from .finding import Finding, Severity, ok

LOOKS = 3
SLOW = timedelta(milliseconds=50)
LEAST_POSTGRESQL = 140_000
LEAST_SQLITE = (3, 35)
FULL_SHARE = 0.8
# Settings of PostgreSQL that must be on, or accepted work can be lost, and how severe it is if one is off.
DURABLE: dict[str, Severity] = {
    "fsync": "error",
    "full_page_writes": "error",
    "synchronous_commit": "warning",
}
NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "glusterfs", "ceph")
SET_CLOCKS = "Synchronise the clocks of both hosts with NTP (chrony, systemd-timesyncd)."
MIGRATE = "Stop JIM, back up the database, run “manage.py migrate”, and start JIM again."


def reach() -> Iterator[Finding]:
    if absent := absent_database():
        yield Finding("error", "database", f"{absent}.", f"{WAYS_OUT[0].upper()}{WAYS_OUT[1:]}.")
        return
    connection.ensure_connection()
    took = []
    for _ in range(LOOKS):
        before = time.monotonic()
        _value("SELECT 1")
        took.append(time.monotonic() - before)
    yield latency(timedelta(seconds=min(took)))


def latency(best: timedelta) -> Finding:
    text = f"The database answers within {span(best)}."
    if best < SLOW:
        return ok("database", text)
    remedy = "Move the database closer to JIM, or reduce the database load: each task needs several queries."
    return Finding("warning", "database", text, remedy)


def server() -> Iterator[Finding]:
    yield from _postgresql() if connection.vendor == "postgresql" else _sqlite()


def clock_skew() -> Iterator[Finding]:
    """Compare this host's clock, which logs use, with the clock of the database, which JIM uses."""
    if connection.vendor != "postgresql":
        yield ok("clock", "SQLite uses this host's clock.")
        return
    before = datetime.now(UTC)
    there: datetime = _value("SELECT clock_timestamp()")
    here = before + (datetime.now(UTC) - before) / 2
    yield skew(here - there.astimezone(UTC))


def skew(ahead: timedelta) -> Finding:
    trouble = clock.trouble(ahead)
    if not trouble:
        return ok("clock", f"The clocks of this host and of the database differ by {span(abs(ahead))}.")
    return Finding(
        "warning", "clock", f"This host's clock is {trouble}. Schedules use the database's clock.", SET_CLOCKS
    )


def migrations() -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    loader = executor.loader
    missing = [f"{m.app_label}.{m.name}" for m, _ in executor.migration_plan(loader.graph.leaf_nodes())]
    ours = {app for app, _ in loader.disk_migrations or {}}
    unknown = [
        f"{a}.{n}" for a, n in loader.applied_migrations if a in ours and (a, n) not in loader.disk_migrations
    ]
    if missing:
        yield Finding(
            "error", "migrations", f"These migrations are not applied: {_first_names(missing)}.", MIGRATE
        )
    if unknown:
        yield Finding(
            "error",
            "migrations",
            f"This version of JIM is older than the database: it lacks {_first_names(unknown)}.",
            "Run the version of JIM that applied these migrations, or a newer version.",
        )
    if not missing and not unknown:
        yield ok("migrations", "All migrations are applied.")


def _postgresql() -> Iterator[Finding]:
    version, number = str(_value("SHOW server_version")), int(_value("SHOW server_version_num"))
    if number < LEAST_POSTGRESQL:
        yield Finding(
            "error", "database", f"PostgreSQL {version} is too old.", "Upgrade to PostgreSQL 14 or newer."
        )
    else:
        yield ok("database", f"PostgreSQL {version}.")
    if _value("SELECT pg_is_in_recovery()"):
        yield Finding(
            "error",
            "database",
            "The database is a read-only standby.",
            "Set DATABASE_URL to the primary, or promote the standby.",
        )
    for name, severity in DURABLE.items():
        if _value(f"SHOW {name}") == "off":
            yield Finding(
                severity,
                "database",
                f"{name} is off, so accepted work can be lost in a power failure.",
                f"Set {name} = on in postgresql.conf, and reload the configuration.",
            )
    yield from _connections()


def _connections() -> Iterator[Finding]:
    most, used = (
        int(_value("SHOW max_connections")),
        int(_value("SELECT count(*) FROM pg_stat_activity")),
    )
    text = f"{used} of {most} connections are in use."
    if used < most * FULL_SHARE:
        yield ok("database", text)
    else:
        remedy = "Raise max_connections, or run fewer worker threads: each thread keeps a connection open."
        yield Finding("warning", "database", text, remedy)


def _sqlite() -> Iterator[Finding]:
    if sqlite3.sqlite_version_info < LEAST_SQLITE:
        remedy = "Use a Python version that includes a newer SQLite, or use PostgreSQL."
        yield Finding("error", "database", f"SQLite {sqlite3.sqlite_version} is too old.", remedy)
    else:
        yield ok("database", f"SQLite {sqlite3.sqlite_version}.")
    mode, synchronous = _value("PRAGMA journal_mode"), int(_value("PRAGMA synchronous"))
    if mode != "wal":
        yield Finding(
            "warning",
            "database",
            f"The journal mode is {mode}, so readers and writers block each other.",
            "Move the database to a local disk that supports shared memory: JIM then uses the WAL mode.",
        )
    if synchronous < 2:
        text = "PRAGMA synchronous is not FULL, so accepted work can be lost in a power failure."
        yield Finding("warning", "database", text, "Leave PRAGMA synchronous at FULL.")
    yield from _place(Path(str(connection.settings_dict["NAME"])))


def _place(path: Path) -> Iterator[Finding]:
    kind = filesystem_of(path)
    if kind in NETWORK_FILESYSTEMS:
        yield Finding(
            "error",
            "database",
            f"The database is on a network drive ({kind}), where SQLite's locks do not work.",
            "Move the data folder to a local disk, or use PostgreSQL.",
        )


def filesystem_of(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of the file system that contains the path, or an empty string if it is unknown."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    at = os.path.realpath(path)
    on = [
        (place, kind) for _, place, kind, *_ in lines if at == place or at.startswith(place.rstrip("/") + "/")
    ]
    return max(on, key=lambda each: len(each[0]))[1] if on else ""


def _value(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    return row[0] if row else None


def _first_names(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(sorted(names)[:3]) + (f" and {rest} more" if rest > 0 else "")
