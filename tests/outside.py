"""What steps reach outside of JIM: programs, a web server, databases. All of it is real."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from execution.steps import programs
from execution.steps.sql_connections import SqlConnection
from tests.steps import pwsh_stand_in
from tests.steps.web_server import WebServer

POSTGRESQL, SQLITE = "hr", "local"


class Outside:
    """What the settings of a worker must name, and the same for the process that saves the steps.

    `meeting`: where steps wait for each other, and for a file called go.
    """

    def __init__(self, folder: Path, web: WebServer, database: str) -> None:
        self.folder, self.web, self.database = folder, web, database
        self.programs, self.data, self.meeting = folder / "programs", folder / "data", folder / "meeting"
        self.lite = folder / "local.sqlite3"
        for each in (self.programs, self.data, self.meeting):
            each.mkdir()
        self.lite.touch()
        # That of this machine, or a stand-in.
        stand_in = f'exec {sys.executable} {pwsh_stand_in.__file__} "$@"'
        own = shutil.which("pwsh", path=programs.SEARCH_PATH)
        self.pwsh = own or _program(folder / "pwsh", stand_in)

    @classmethod
    def prepare(cls, folder: Path, web: WebServer, database: str, settings: Any) -> Outside:
        own = cls(folder, web, database)
        settings.JIM_DATA_DIR = own.data
        settings.JIM_EXECUTABLE_FOLDERS = [own.programs]
        settings.JIM_PWSH = own.pwsh
        settings.JIM_HTTP_ALLOW = ["127.0.0.1"]
        settings.JIM_SQL_CONNECTIONS = {
            name: SqlConnection.from_url(url) for name, url in own._databases.items()
        }
        return own

    @property
    def env(self) -> dict[str, str]:
        return {
            "JIM_EXECUTABLE_FOLDERS": str(self.programs),
            "JIM_PWSH": self.pwsh,
            "JIM_HTTP_ALLOW": "127.0.0.1",
            "JIM_SQL_CONNECTIONS": json.dumps(self._databases),
        }

    @property
    def _databases(self) -> dict[str, str]:
        return {POSTGRESQL: self.database, SQLITE: f"sqlite:///{quote(str(self.lite))}"}

    def script(self, name: str, body: str) -> str:
        """A program, or with a name that ends in .ps1 a script for PowerShell, that steps may run."""
        return _program(self.programs / name, body)

    def is_postgresql_busy(self) -> bool:
        """Whether it still works for an sql step, or has a session open for one."""
        with psycopg.connect(self.database) as connection:
            sessions = "SELECT FROM pg_stat_activity WHERE datname = current_database()"
            return bool(connection.execute(f"{sessions} AND application_name LIKE 'jim: %'").rowcount)

    def is_sqlite_locked(self) -> bool:
        """Whether somebody is writing into the file."""
        with closing(sqlite3.connect(self.lite, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            return False


def _program(path: Path, body: str) -> str:
    path.write_text(body if path.suffix == ".ps1" else f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)
