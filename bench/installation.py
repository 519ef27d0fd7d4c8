"""Installations of JIM for measurements, each with its own empty database."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Literal, LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent
DatabaseName = Literal["sqlite", "postgres"]


class CannotMeasure(Exception):
    """Raised if a measurement is not possible; the message tells the user why."""


class Database(ABC):
    """A template database that is migrated once, and copied for each measurement."""

    name: DatabaseName

    def __init__(self, folder: Path) -> None:
        self.folder = folder / self.name
        self.folder.mkdir()
        self.numbers = count(1)
        self._prepare()

    @contextmanager
    def installation(self) -> Iterator[dict[str, str]]:
        """Yield the environment for JIM's commands; the installation is deleted after the block."""
        number = next(self.numbers)
        data = self.folder / str(number)
        data.mkdir(mode=0o700)
        try:
            with self._copy(number, data) as url:
                yield self._environment(data, url)
        finally:
            shutil.rmtree(data, ignore_errors=True)

    @property
    @abstractmethod
    def version(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def _copy(self, number: int, data: Path) -> AbstractContextManager[str]:
        """Yield the URL of a new database, which is deleted after the block."""

    def _migrate(self, data: Path, url: str) -> None:
        data.mkdir(mode=0o700)
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--verbosity=0"],
            cwd=ROOT,
            env=self._environment(data, url),
            check=True,
        )

    def _environment(self, data: Path, url: str) -> dict[str, str]:
        """Return an environment without the developer's settings, which must not affect the measurement."""
        own = ("JIM_", "DJANGO_", "DATABASE_URL", "PYTEST_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        return {
            **inherited,
            "DJANGO_SETTINGS_MODULE": "jimsite.settings",
            "DATABASE_URL": url,
            "JIM_DATA_DIR": str(data),
            "BENCH_MARKS": str(data / "marks"),
        }


class SQLite(Database):
    name = "sqlite"

    @property
    def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def _prepare(self) -> None:
        self._migrate(self.folder / "template", "")

    @contextmanager
    def _copy(self, number: int, data: Path) -> Iterator[str]:
        """Copy the database file into the data folder, where JIM finds it without a URL."""
        shutil.copy(self.folder / "template" / "jim.sqlite3", data)
        yield ""


class PostgreSQL(Database):
    """Databases with names of their own, on a server that may also hold other databases."""

    name = "postgres"

    def __init__(self, folder: Path, *, server: str) -> None:
        self.server = server
        self.prefix = f"jim_bench_{os.getpid()}"
        super().__init__(folder)

    @property
    def version(self) -> str:
        with self._connect() as connection:
            number = connection.info.server_version
        return f"PostgreSQL {number // 10_000}.{number % 10_000}"

    def close(self) -> None:
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", self._name("template"))

    def _prepare(self) -> None:
        template = self._name("template")
        self._run("CREATE DATABASE {}", template)
        try:
            self._migrate(self.folder / "template", self._url(template))
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _copy(self, number: int, data: Path) -> Iterator[str]:
        try:
            self._run("CREATE DATABASE {} TEMPLATE {}", self._name(number), self._name("template"))
            yield self._url(self._name(number))
        finally:
            self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", self._name(number))

    def _name(self, suffix: object) -> str:
        return f"{self.prefix}_{suffix}"

    def _url(self, name: str) -> str:
        return urlsplit(self.server)._replace(path=f"/{name}").geturl()

    def _run(self, statement: LiteralString, *names: str) -> None:
        with self._connect() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def _connect(self) -> psycopg.Connection:
        try:
            return psycopg.connect(self.server, autocommit=True)
        except psycopg.OperationalError as error:
            raise CannotMeasure(f"PostgreSQL at BENCH_DATABASE_URL does not answer: {error}") from error
