"""Clear errors for commands whose database is missing, empty or outdated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management.base import CommandError
from django.db import Error, OperationalError, ProgrammingError, connection

WAYS_OUT = "run “manage.py migrate” first, or select another database with JIM_DATA_DIR or DATABASE_URL"


@contextmanager
def usable_database(*, is_needed: bool = True) -> Iterator[None]:
    """Raise CommandError with a one-line message if the database is missing or the block cannot use it.

    If `is_needed` is False, do not check first whether the database is missing.
    """
    if is_needed and (absent := absent_database()):
        raise CommandError(f"{absent}: {WAYS_OUT}.", returncode=2)
    try:
        yield
    except (OperationalError, ProgrammingError) as error:
        words = " ".join(str(error).split())
        is_old = isinstance(error, ProgrammingError) or words.startswith("no such")
        hint = f" ({selected_database()} is older than this program, or empty: {WAYS_OUT})" if is_old else ""
        raise CommandError(f"The database cannot be used: {words}{hint}", returncode=2) from None


def require_migrated(table: str) -> None:
    """Raise CommandError if the database is missing or lacks the table; ignore an unreachable database."""
    absent = absent_database()
    if not absent:
        try:
            tables = connection.introspection.table_names()
        except Error:
            return
        finally:
            if not connection.in_atomic_block:
                connection.close()
        absent = "" if table in tables else f"{selected_database()} has no JIM tables yet"
    if absent:
        raise CommandError(f"{absent}: {WAYS_OUT}.", returncode=2)


def absent_database() -> str:
    """Return an error message if the SQLite file is missing or empty, otherwise an empty string.

    This does not connect, because connecting would create the file.
    """
    if connection.vendor != "sqlite" or connection.connection is not None:
        return ""
    path = Path(connection.settings_dict["NAME"])
    try:
        return "" if path.stat().st_size else f"{selected_database()} is empty"
    except FileNotFoundError:
        return f"The database {path} does not exist"
    except OSError:
        return ""  # connecting shows what is wrong


def selected_database() -> str:
    """Return the words by which messages name the database, without its password."""
    chosen = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"The database {chosen['NAME']}"
    host = chosen["HOST"] or chosen.get("OPTIONS", {}).get("host") or "this host"
    return f"The database “{chosen['NAME']}” on {host}"
