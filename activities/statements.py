"""Set-based writes that the ORM cannot express in one statement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import InterfaceError, InternalError, OperationalError, connection, models

# Away, locked, victim of a deadlock: errors that say nothing about the data. The same may work later.
# InternalError is what a session is told that PostgreSQL ended because it idled in a transaction.
AWAY = (OperationalError, InterfaceError, InternalError)
VARIABLES_PER_STATEMENT = 20_000
T = TypeVar("T")


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
    vendor = connection.vendor
    given = _given(vendor, model, ("pk", *fields))
    return {pk for (pk,) in _write(vendor, given, rows, _update(vendor, model, given.names, where), params)}


def insert_each(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    same: Mapping[str, Any] | None = None,
    where: str = "1 = 1",
    params: Sequence[Any] = (),
    unless_known: bool = False,
    returning: str = "",
) -> list[tuple[Any, ...]]:
    """Inserts the rows (values on alias `v`) for which `where` holds; returns columns of them, in order.

    `same` are fields that have one value in all rows; `unless_known` passes over rows with a known key.
    """
    vendor = connection.vendor
    given = _given(vendor, model, tuple(fields))
    shared = _given(vendor, model, tuple(same or ()))
    constants = list(same.values()) if same else []
    if vendor != "postgresql" and constants:
        constants = [column[0] for column in _fitted(shared, [constants])]
    if unless_known:
        where += " ON CONFLICT DO NOTHING"
    insert = _insert(vendor, model, given.names, shared.names, where, returning)
    return _write(vendor, given, rows, insert, [*constants, *params])


def among(columns: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """A condition and its parameters: `columns` (one, or several in brackets) has one of these values.

    PostgreSQL gets arrays, so that one text serves any number; SQLite has none.
    """
    is_single = not columns.startswith("(")
    if connection.vendor != "postgresql":
        listed = ", ".join(["%s"] * len(values)) if is_single else f"VALUES {placeholders(values)}"
        return f"{columns} IN ({listed})", list(values) if is_single else [v for row in values for v in row]
    if is_single:
        return f"{columns} = ANY(%s)", [list(values)]
    arrays = [list(column) for column in zip(*values, strict=True)]
    return f"{columns} IN (SELECT * FROM unnest({', '.join(['%s::bigint[]'] * len(arrays))}))", arrays


def fetch(sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def read(
    model: type[models.Model], fields: Sequence[str], ending: str, params: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """These fields of the rows that the rest of the statement is about, with the values that the ORM gives.

    For what is asked often: writing such a statement takes the ORM longer than its answer.
    """
    given = _read(connection.vendor, model, tuple(fields))
    rows = fetch(f'SELECT {given.definition} FROM "{model._meta.db_table}" {ending}', params)
    return list(zip(*_fitted(given, rows), strict=True)) if rows else []


def write(sql: str, params: Sequence[Any]) -> int:
    """The number of rows that were changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def write_each(sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """The same statement for each, one after the other."""
    with connection.cursor() as cursor:
        cursor.executemany(sql, rows)


def first_since(model: type[models.Model], column: str, at: datetime) -> int:
    """The first id of the rows whose time is not before this, for times that grow with the ids."""
    return int(fetch(*finding_first_since(model, column, at))[0][0])


def finding_first_since(model: type[models.Model], column: str, at: datetime) -> tuple[str, list[Any]]:
    """By halves, in one statement: a table of millions needs no index on its times for that."""
    table, time = model._meta.db_table, connection.ops.adapt_datetimefield_value(at)
    is_before = (
        f"(SELECT {column} FROM {table} WHERE id >= (part.low + part.high) / 2 ORDER BY id LIMIT 1) < %s"
    )
    sql = f"""
        WITH RECURSIVE part(low, high) AS (
            SELECT COALESCE((SELECT MIN(id) FROM {table}), 0), COALESCE((SELECT MAX(id) FROM {table}), 0) + 1
            UNION ALL
            SELECT CASE WHEN {is_before} THEN (low + high) / 2 + 1 ELSE low END,
                CASE WHEN {is_before} THEN high ELSE (low + high) / 2 END
            FROM part WHERE low < high
        )
        SELECT MAX(low) FROM part WHERE low >= high
    """
    return sql, [time, time]


@contextmanager
def planned_once() -> Iterator[None]:
    """For statements that read no table: their plan is good for ever, and takes longer than they do."""
    if connection.vendor != "postgresql":
        yield
        return
    connection.ensure_connection()
    driver: Any = connection.connection
    before, driver.prepare_threshold = driver.prepare_threshold, 0
    try:
        yield
    finally:
        driver.prepare_threshold = before


def instant(at: datetime | str) -> datetime:
    """As `fetch` found it: SQLite stores UTC without a zone."""
    if isinstance(at, str):
        return datetime.fromisoformat(at if at[-3] in "+-" else f"{at}+00:00")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


@lru_cache(maxsize=4096)
def naive(at: datetime) -> str:
    """As SQLite stores it."""
    return (at if at.tzinfo is UTC else at.astimezone(UTC)).isoformat(" ")[:-6]


def placeholders(rows: Sequence[Sequence[Any]]) -> str:
    """`(%s, %s), (%s, %s)` for a VALUES list."""
    return ", ".join([f"({', '.join(['%s'] * len(rows[0]))})"] * len(rows))


class Given(NamedTuple):
    """The columns of a list of rows, and what makes their values fit for the other side (None: nothing)."""

    names: tuple[str, ...]
    definition: str
    fit: tuple[Callable[[Any], Any] | None, ...]


@lru_cache(maxsize=256)
def _given(vendor: str, model: type[models.Model], fields: tuple[str, ...]) -> Given:
    columns: list[Any] = [model._meta.pk if name == "pk" else model._meta.get_field(name) for name in fields]
    fits = _POSTGRESQL_FITS if vendor == "postgresql" else _SQLITE_FITS
    return Given(
        tuple(column.column for column in columns),
        ", ".join(f'"{column.column}" {column.rel_db_type(connection)}' for column in columns),
        tuple(fits.get(kind_of(column)) for column in columns),
    )


@lru_cache(maxsize=64)
def _read(vendor: str, model: type[models.Model], fields: tuple[str, ...]) -> Given:
    columns: list[Any] = [model._meta.get_field(name) for name in fields]
    fits = _POSTGRESQL_READS if vendor == "postgresql" else _SQLITE_READS
    return Given(
        fields,
        ", ".join(f'"{model._meta.db_table}"."{column.column}"' for column in columns),
        tuple(fits.get(kind_of(column)) for column in columns),
    )


def kind_of(column: Any) -> str:
    return str((column.target_field if column.is_relation else column).get_internal_type())


@lru_cache(maxsize=256)
def _update(vendor: str, model: type[models.Model], names: tuple[str, ...], where: str) -> str:
    key, *others = names
    assign = ", ".join(f'"{name}" = v."{name}"' for name in others)
    guard = f" AND {where}" if where else ""
    # SQLite knows no alias after RETURNING; PostgreSQL finds the bare name ambiguous.
    returning = f't."{key}"' if vendor == "postgresql" else f'"{key}"'
    return (
        f'UPDATE "{model._meta.db_table}" AS t SET {assign} FROM v WHERE t."{key}" = v."{key}"{guard} '
        f"RETURNING {returning}"
    )


@lru_cache(maxsize=256)
def _insert(
    vendor: str,
    model: type[models.Model],
    names: tuple[str, ...],
    shared: tuple[str, ...],
    where: str,
    returning: str,
) -> str:
    columns = ", ".join(f'"{name}"' for name in names + shared)
    values = ", ".join([f'v."{name}"' for name in names] + ["%s"] * len(shared))
    ending = f" RETURNING {returning}" if returning else ""
    return f'INSERT INTO "{model._meta.db_table}" ({columns}) SELECT {values} FROM v WHERE {where}{ending}'


def _write(
    vendor: str, given: Given, rows: Iterable[Sequence[Any]], statement: str, params: Sequence[Any]
) -> list[tuple[Any, ...]]:
    listed = _listed_as_json if vendor == "postgresql" else _listed_as_values
    written: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for part in slices(list(rows), columns=len(given.names)):
            listing, values = listed(given, part)
            cursor.execute(f"WITH {listing} {statement}", [*values, *params])
            if cursor.description:
                written += cursor.fetchall()
    return written


def _listed_as_json(given: Given, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """One parameter, whatever the size: a third of what the driver needs for a VALUES list of variables."""
    fitted = zip(*_fitted(given, rows), strict=True)
    text = json.dumps([dict(zip(given.names, row, strict=True)) for row in fitted])
    return f"v AS (SELECT * FROM json_to_recordset(%s) AS v({given.definition}))", [text]


def _listed_as_values(given: Given, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    values = [value for row in zip(*_fitted(given, rows), strict=True) for value in row]
    names = ", ".join(f'"{name}"' for name in given.names)
    return f"v({names}) AS (VALUES {placeholders(rows)})", values


def _fitted(given: Given, rows: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    return [
        column if fit is None else [None if value is None else fit(value) for value in column]
        for column, fit in zip(zip(*rows, strict=True), given.fit, strict=True)
    ]


def slices(rows: Sequence[T], *, columns: int = 1) -> Iterator[Sequence[T]]:
    """No more rows at once than one statement may have variables for."""
    size = VARIABLES_PER_STATEMENT // columns
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _hex(key: UUID | str) -> str:
    return str(key).replace("-", "")


def _loaded(text: str) -> Any:
    """Damaged as it is, if it is: whoever uses it complains."""
    try:
        return json.loads(text)
    except ValueError:
        return text


_POSTGRESQL_FITS: dict[str, Callable[[Any], Any]] = {
    "DateTimeField": lru_cache(maxsize=4096)(datetime.isoformat),
    "UUIDField": str,
}
_SQLITE_FITS: dict[str, Callable[[Any], Any]] = {
    "DateTimeField": naive,
    "UUIDField": _hex,
    "JSONField": json.dumps,
}
_POSTGRESQL_READS: dict[str, Callable[[Any], Any]] = {"JSONField": _loaded}
_SQLITE_READS: dict[str, Callable[[Any], Any]] = {
    "BooleanField": bool,
    "DateTimeField": instant,
    "JSONField": _loaded,
    "UUIDField": UUID,
}
