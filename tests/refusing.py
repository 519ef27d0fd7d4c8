from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from django.db import connection

POISON = "CAST(NEW.result AS text) LIKE '%poison%'"


@contextmanager
def database_that_refuses(
    condition: str = POISON,
    *,
    table: str = "activities_activity",
    event: Literal["INSERT", "UPDATE"] = "UPDATE",
    error: Literal["refusal", "trouble"] = "refusal",
    this_connection_only: bool = False,
) -> Iterator[None]:
    """A real trigger that raises on rows (`NEW`) which meet the condition.

    A refusal is the row's own fault; trouble is what the database may have got over the next time.
    """
    make, drop = _SQLITE if connection.vendor == "sqlite" else _POSTGRESQL
    words = {
        "table": table,
        "event": event,
        "condition": condition,
        "refuse": _REFUSE[connection.vendor, error],
        "temporary": "TEMPORARY" if this_connection_only else "",
        "and_here": "AND current_setting('jim.refuse', true) = 'here'" if this_connection_only else "",
    }
    _execute(*(part.format(**words) for part in make))
    try:
        yield
    finally:
        _execute(*(part.format(table=table) for part in drop))


def _execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


_REFUSE = {
    ("sqlite", "refusal"): "SELECT RAISE(ABORT, 'this row is refused')",
    ("sqlite", "trouble"): "SELECT * FROM a_table_that_is_away",
    ("postgresql", "refusal"): "RAISE EXCEPTION 'this row is refused'",
    ("postgresql", "trouble"): "RAISE EXCEPTION 'out of memory' USING ERRCODE = 'out_of_memory'",
}
_SQLITE = (
    ["CREATE {temporary} TRIGGER refuse BEFORE {event} ON {table} WHEN {condition} BEGIN {refuse}; END"],
    ["DROP TRIGGER IF EXISTS refuse"],
)
_POSTGRESQL = (
    [
        "SET jim.refuse = 'here'",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF {condition} {and_here} THEN {refuse}; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    ["RESET jim.refuse", "DROP TRIGGER refuse ON {table}", "DROP FUNCTION refuse"],
)
