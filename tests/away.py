"""Real outages of the database, for processes; the test itself keeps its way in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import psycopg
from django.db import connection

from tests.conftest import server


class DatabaseAway:
    """A database that processes started with `env` cannot reach until it comes back."""

    def __init__(self, folder: Path) -> None:
        self._link = folder / "jim.sqlite3"
        self._is_sqlite = connection.vendor == "sqlite"
        self.env = {"DATABASE_URL": f"sqlite:///{self._link}"} if self._is_sqlite else {}

    def __enter__(self) -> Self:
        if self._is_sqlite:
            self._link.mkdir()
        else:
            _allow_connections("false")
        return self

    def come_back(self) -> None:
        if self._is_sqlite:
            self._link.rmdir()
            self._link.symlink_to(connection.settings_dict["NAME"])
        else:
            _allow_connections("true")

    def __exit__(self, *_: object) -> None:
        if not self._is_sqlite:
            _allow_connections("true")


@contextmanager
def outage() -> Iterator[None]:
    """Within the block, all others are cut off from PostgreSQL; nobody can write to SQLite."""
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            yield
        return
    _allow_connections("false")
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        yield
    finally:
        _allow_connections("true")


def _allow_connections(allowed: str) -> None:
    name = connection.settings_dict["NAME"]
    with psycopg.connect(server.url("postgres"), autocommit=True) as other:
        other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS {allowed}')
