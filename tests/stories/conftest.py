from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from database import clock
from tests.base import NOW
from tests.conftest import server
from tests.outside import Outside
from tests.postgres import PostgresServer
from tests.settings import TEST_DB, TEST_DIR
from tests.steps.web_server import serving


@pytest.fixture(autouse=True)
def clock_at_now(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads the clock by itself sees the time that stories pass in, unless they measure real time."""
    if request.node.get_closest_marker("live") is None:
        monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of this run, or one of its own if the suite runs on SQLite."""
    if TEST_DB == "postgres":
        yield server
        return
    own = PostgresServer(TEST_DIR / f"pg-stories-{os.getpid()}")
    own.start()
    try:
        yield own
    finally:
        own.stop()


@pytest.fixture
def outside(postgres: PostgresServer, tmp_path: Path, settings: Any) -> Iterator[Outside]:
    """The settings of this process name it; workers are started with its `env`."""
    name = f"outside_{os.getpid()}"
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin, serving() as web:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield Outside.prepare(tmp_path, web, postgres.url(name), settings)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
