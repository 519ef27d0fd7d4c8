from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from execution.loops import prepare_connections

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has no planner to talk to"),
]


def _settings_of_a_loop() -> dict[str, str]:
    prepare_connections()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, setting FROM pg_settings WHERE name LIKE 'enable%' OR name = 'jit'")
            return dict(cursor.fetchall())
    finally:
        connection.close()


def test_a_loop_plans_by_indexes_and_compiles_nothing() -> None:
    with ThreadPoolExecutor(1) as threads:
        settings = threads.submit(_settings_of_a_loop).result()
    assert {settings[name] for name in ("enable_seqscan", "enable_bitmapscan", "jit")} == {"off"}
    assert settings["enable_indexscan"] == "on"
