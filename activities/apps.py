from __future__ import annotations

import sqlite3
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class ActivitiesConfig(AppConfig):
    name = "activities"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Activities"

    def ready(self) -> None:
        connection_created.connect(_insert_in_one_statement)


def _insert_in_one_statement(connection: Any, **_: object) -> None:
    """Raise Django's limit of 999 variables per statement to SQLite's limit, so fewer inserts are split."""
    if connection.vendor == "sqlite":
        limit = connection.connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        connection.features.max_query_params = limit
