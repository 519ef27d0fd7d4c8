from __future__ import annotations

import os
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection

from tests.postgres import PostgresServer
from tests.settings import TEST_DB, TEST_DIR

SERIAL_FOLDERS = {"races", "chaos", "browser"}
server = PostgresServer(TEST_DIR / "pg")


def pytest_configure(config: pytest.Config) -> None:
    if TEST_DB == "postgres" and is_controller(config):
        server.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if TEST_DB == "postgres" and is_controller(config):
        server.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SERIAL_FOLDERS & set(item.path.relative_to(settings.BASE_DIR).parts):
            item.add_marker(pytest.mark.serial)


def subprocess_env(**overrides: str) -> dict[str, str]:
    """The environment in which `manage.py …` runs with JIM's own settings on the database of this very test.

    Another process sees only what is committed: use it with `django_db(transaction=True)`.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("JIM_", "PYTEST_"))
    }
    return {
        **inherited,
        "DJANGO_SETTINGS_MODULE": "jimsite.settings",
        "DATABASE_URL": database_url(),
        "JIM_DATA_DIR": str(settings.JIM_DATA_DIR),
        "JIM_SECRET_KEY": settings.SECRET_KEY,
        **overrides,
    }


def database_url() -> str:
    name = quote(str(connection.settings_dict["NAME"]))
    return f"sqlite:///{name}" if connection.vendor == "sqlite" else server.url(name)


def is_controller(config: pytest.Config) -> bool:
    """Not one of the processes that pytest-xdist starts."""
    return not hasattr(config, "workerinput")
