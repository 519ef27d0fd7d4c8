"""Set-based writes that the ORM cannot express in one statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.db import connection, models

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
    changed: set[Any] = set()
    for part in _slices(list(rows), columns=len(fields) + 1):
        changed |= _update_slice(model, fields, part, where, params)
    return changed


def _update_slice(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Sequence[Sequence[Any]],
    where: str,
    params: Sequence[Any],
) -> set[Any]:
    meta = model._meta
    columns: list[Any] = [meta.pk, *(meta.get_field(name) for name in fields)]
    names = ", ".join(f'"{field.column}"' for field in columns)
    assign = ", ".join(f'"{f.column}" = {_typed(f)}' for f in columns[1:])
    # SQLite knows no alias after RETURNING; PostgreSQL finds the bare name ambiguous.
    key = f'"{columns[0].column}"' if connection.vendor == "sqlite" else f't."{columns[0].column}"'
    sql = (
        f"WITH v({names}) AS (VALUES {placeholders(rows)}) "
        f'UPDATE "{meta.db_table}" AS t SET {assign} FROM v '
        f'WHERE t."{columns[0].column}" = {_typed(columns[0])}{" AND " + where if where else ""} RETURNING {key}'
    )
    values = [
        field.get_db_prep_save(value, connection)
        for row in rows
        for field, value in zip(columns, row, strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.execute(sql, [*values, *params])
        return {columns[0].to_python(key) for (key,) in cursor.fetchall()}


def insert_each(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    where: str,
    params: Sequence[Any] = (),
    returning: str,
) -> set[Any]:
    """Inserts the rows (values on alias `v`) for which `where` holds; returns a column of the inserted."""
    columns: list[Any] = [model._meta.get_field(name) for name in fields]
    names = ", ".join(f'"{field.column}"' for field in columns)
    chosen = ", ".join(_typed(field) for field in columns)
    inserted: set[Any] = set()
    with connection.cursor() as cursor:
        for part in _slices(rows, columns=len(columns)):
            sql = (
                f"WITH v({names}) AS (VALUES {placeholders(part)}) "
                f'INSERT INTO "{model._meta.db_table}" ({names}) '
                f"SELECT {chosen} FROM v WHERE {where} RETURNING {returning}"
            )
            cursor.execute(sql, [*_prepared(columns, part), *params])
            inserted |= {key for (key,) in cursor.fetchall()}
    return inserted


def _slices(rows: Sequence[Sequence[Any]], *, columns: int) -> Iterator[Sequence[Sequence[Any]]]:
    """No more rows at once than one statement may have variables for."""
    size = VARIABLES_PER_STATEMENT // columns
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _prepared(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [
        field.get_db_prep_save(value, connection)
        for row in rows
        for field, value in zip(columns, row, strict=True)
    ]


def _typed(field: Any) -> str:
    """PostgreSQL takes a VALUES list of bare literals for text; SQLite keeps what it was given."""
    if connection.vendor != "postgresql":
        return f'v."{field.column}"'
    kind = field.rel_db_type(connection) if field.primary_key else field.db_type(connection)
    return f'v."{field.column}"::{kind}'


def placeholders(pairs: Sequence[Sequence[Any]]) -> str:
    """`(%s, %s), (%s, %s)` for a VALUES list."""
    return ", ".join("(" + ", ".join(["%s"] * len(pair)) + ")" for pair in pairs)
