"""After a test that commits, what Django puts into an emptied database is copied, not worked out again.

To find out anew which content types, permissions and roles there are takes longer than most tests do.
"""

from __future__ import annotations

from typing import Any

from django.contrib.contenttypes.models import ContentType
from django.core.management.commands import flush
from django.core.management.sql import emit_post_migrate_signal
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


class Refill:
    """Stands in for the signal that Django's `flush` sends: the first time it is sent, and its work kept."""

    def __init__(self) -> None:
        self.kept: dict[str, list[tuple[Any, ...]]] = {}

    def __call__(self, verbosity: int, interactive: bool, db: str) -> None:
        if self.kept:
            self._write(connections[db])
        else:
            emit_post_migrate_signal(verbosity, interactive, db)
            self.kept = _rows(connections[db])

    def _write(self, connection: BaseDatabaseWrapper) -> None:
        with transaction.atomic(connection.alias), connection.cursor() as cursor:
            for table, rows in self.kept.items():
                row = f"({', '.join(['%s'] * len(rows[0]))})"
                values = [value for each in rows for value in each]
                cursor.execute(f'INSERT INTO "{table}" VALUES {", ".join([row] * len(rows))}', values)
        ContentType.objects.clear_cache()


def _rows(connection: BaseDatabaseWrapper) -> dict[str, list[tuple[Any, ...]]]:
    """What `migrate` makes; whatever else is there, somebody has just left behind."""
    found = {}
    with connection.cursor() as cursor:
        for table in connection.introspection.django_table_names(only_existing=True, include_views=False):
            if not table.startswith(("auth_group", "auth_permission", "django_content_type")):
                continue
            cursor.execute(f'SELECT * FROM "{table}"')
            found[table] = cursor.fetchall()
    return {table: rows for table, rows in found.items() if rows}


def keep_what_an_empty_database_has() -> None:
    flush.emit_post_migrate_signal = Refill()  # type: ignore[attr-defined]
