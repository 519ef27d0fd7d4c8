"""Set-based writes that the ORM cannot express in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.db import InterfaceError, InternalError, OperationalError, connection, models

# Away, locked, victim of a deadlock: errors that say nothing about the data. The same may work later.
# InternalError is what a session is told that PostgreSQL ended because it idled in a transaction.
AWAY = (OperationalError, InterfaceError, InternalError)
VARIABLES_PER_STATEMENT = 20_000


def update_each(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    where: str = "",
    params: Sequence[Any] = (),
) -> set[Any]:
    """Writes other values into each row, guarded by `where` (on alias `t`, given values on `v`).

    Each row is (pk, value, …) in the order of `fields`. Returns the keys of the rows that were changed.
    """
    meta = model._meta
    columns: list[Any] = [meta.pk, *(meta.get_field(name) for name in fields)]
    key, assign = columns[0].column, ", ".join(f'"{f.column}" = {_typed(f)}' for f in columns[1:])
    update = (
        f'UPDATE "{meta.db_table}" AS t SET {assign} FROM v WHERE t."{key}" = {_typed(columns[0])}'
        f"{' AND ' + where if where else ''}"
    )
    # SQLite knows no alias after RETURNING; PostgreSQL finds the bare name ambiguous.
    returning = f'"{key}"' if connection.vendor == "sqlite" else f't."{key}"'
    return {columns[0].to_python(pk) for pk in _write(columns, rows, update, params, returning)}


def insert_each(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    where: str,
    params: Sequence[Any] = (),
    returning: str,
) -> set[Any]:
    """Inserts the rows (values on alias `v`) for which `where` holds; returns a column of the inserted."""
    columns: list[Any] = [model._meta.get_field(name) for name in fields]
    chosen = ", ".join(_typed(field) for field in columns)
    insert = f'INSERT INTO "{model._meta.db_table}" ({_names(columns)}) SELECT {chosen} FROM v WHERE {where}'
    return _write(columns, rows, insert, params, returning)


def placeholders(rows: Sequence[Sequence[Any]]) -> str:
    """`(%s, %s), (%s, %s)` for a VALUES list."""
    return ", ".join("(" + ", ".join(["%s"] * len(row)) + ")" for row in rows)


def _write(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    statement: str,
    params: Sequence[Any],
    returning: str,
) -> set[Any]:
    written: set[Any] = set()
    with connection.cursor() as cursor:
        for part in _slices(list(rows), columns=len(columns)):
            given = f"WITH v({_names(columns)}) AS (VALUES {placeholders(part)})"
            values = [
                field.get_db_prep_save(value, connection)
                for row in part
                for field, value in zip(columns, row, strict=True)
            ]
            cursor.execute(f"{given} {statement} RETURNING {returning}", [*values, *params])
            written |= {value for (value,) in cursor.fetchall()}
    return written


def _slices(rows: Sequence[Sequence[Any]], *, columns: int) -> Iterator[Sequence[Sequence[Any]]]:
    """No more rows at once than one statement may have variables for."""
    size = VARIABLES_PER_STATEMENT // columns
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _names(columns: Sequence[Any]) -> str:
    return ", ".join(f'"{field.column}"' for field in columns)


def _typed(field: Any) -> str:
    """PostgreSQL takes a VALUES list of bare literals for text; SQLite keeps what it was given."""
    if connection.vendor != "postgresql":
        return f'v."{field.column}"'
    kind = field.rel_db_type(connection) if field.primary_key else field.db_type(connection)
    return f'v."{field.column}"::{kind}'
