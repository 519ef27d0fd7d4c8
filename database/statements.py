"""Set-based writes that the ORM cannot express in one statement, and helpers for SQL statements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from django.db import InterfaceError, InternalError, OperationalError, connection, models
from django.db.models import Func

# Errors that are not about the data, so that a retry may succeed: the database is away or locked, or it ended
# a deadlock. PostgreSQL raises InternalError in a session that it ended because it idled in a transaction.
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
    """Update each row with its own values if the condition `where` holds for the row.

    In `where`, `t` is the table and `v` has the given values. Each row is (pk, value, …) in the order of
    `fields`. Return the keys of the rows that were changed.
    """
    vendor = connection.vendor
    given = _given(vendor, model, ("pk", *fields))
    return {pk for (pk,) in _write(vendor, given, rows, _update(vendor, model, given.names, where), params)}


def update_those(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    fence: str,
    fence_params: Sequence[Any],
    where: str,
    asking: str,
) -> list[tuple[Any, ...]]:
    """Update those of the given rows whose keys the statement `fence` returns (PostgreSQL only).

    All runs as one statement. `fence` can itself write. Its first column, `pk`, is the key. `where` is a
    further condition for the update; `asking` is a condition that is only evaluated. Return the rows of
    `fence` with two values in front: whether the row was updated, and whether `asking` is true.
    """
    given = _given("postgresql", model, ("pk", *fields))
    listing, values = _listed_as_json(given, list(rows))
    update = _update("postgresql", model, given.names, f"t.id IN (SELECT pk FROM fence) AND {where}")
    sql = (
        f"WITH {listing}, fence AS ({fence}), done AS ({update}) "
        f"SELECT done.id IS NOT NULL, {asking}, fence.* FROM fence LEFT JOIN done ON done.id = fence.pk"
    )
    return fetch(sql, [*values, *fence_params])


def insert_each(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    same: Mapping[str, Any] | None = None,
    where: str = "",
    params: Sequence[Any] = (),
    unless_known: bool = False,
    returning: str = "",
) -> list[tuple[Any, ...]]:
    """Insert the rows for which the condition `where` holds; return the columns `returning` of these rows.

    In `where`, `v` has the values of a row. `same` has the fields that have the same value in all rows.
    `unless_known` skips rows whose key already exists.
    """
    vendor = connection.vendor
    given = _given(vendor, model, tuple(fields))
    shared = _given(vendor, model, tuple(same or ()))
    constants = list(same.values()) if same else []
    if vendor == "postgresql":
        constants = [json.dumps(value) if isinstance(value, dict | list) else value for value in constants]
    elif constants:
        constants = [column[0] for column in _fitted(shared, [constants])]
    insert = _insert(vendor, model, given.names, shared.names, where, unless_known, returning)
    return _write(vendor, given, rows, insert, [*constants, *params], waits=bool(returning))


def among(columns: str, values: Sequence[Any], kind: str = "bigint") -> tuple[str, list[Any]]:
    """Return an SQL condition that is true for rows with one of the given values, and its parameters.

    `columns` is one column, or several columns in parentheses; `kind` is the type of their values. PostgreSQL
    gets arrays, so that the statement is the same for any number of values. SQLite has no arrays. It would
    scan the table to compare several columns, so the first column is also compared on its own.
    """
    is_single = not columns.startswith("(")
    if connection.vendor != "postgresql":
        if is_single:
            return f"{columns} IN ({', '.join(['%s'] * len(values))})", list(values)
        first, firsts = among(columns[1:].partition(",")[0], list(dict.fromkeys(row[0] for row in values)))
        listed = [value for row in values for value in row]
        return f"{first} AND {columns} IN (VALUES {placeholders(values)})", [*firsts, *listed]
    if is_single:
        return f"{columns} = {hidden(kind)}", [list(values)]
    arrays = [list(column) for column in zip(*values, strict=True)]
    given = ", ".join([f"(SELECT %s::{kind}[])"] * len(arrays))
    return f"{columns} IN (SELECT * FROM unnest({given}))", arrays


def found_in(chosen: str) -> str:
    """Return SQL to append to a key, for the condition that the query `chosen` selects this key.

    PostgreSQL looks up the keys of an array one by one. With a subquery, it might join the whole table.
    """
    return f"= ANY(ARRAY({chosen}))" if connection.vendor == "postgresql" else f"IN ({chosen})"


def hidden(kind: str) -> str:
    """Return SQL for “any value of an array parameter” that hides the array's length from PostgreSQL.

    Otherwise, PostgreSQL would plan the statement again for each length. `kind` is the type of the values.
    """
    return f"ANY(ARRAY(SELECT unnest(%s::{kind}[])))"


def literal(text: str) -> Func:
    """Return an expression that writes a status directly into the SQL text, instead of as a parameter.

    With a parameter, SQLite would prepare the statement again for each new value if the column is in the
    condition of a partial index.
    """
    return Func(template=f"'{text}'", output_field=models.CharField())


def fetch(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def read(
    model: type[models.Model], fields: Sequence[str], ending: str, params: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Return the fields of the rows that `ending` selects, with the values that the ORM would return.

    `ending` is the SQL after the FROM clause. This function is for frequent queries, because the ORM takes
    longer to build such a statement than the database takes to run it.
    """
    given = _read(connection.vendor, model, tuple(fields))
    rows = fetch(f'SELECT {given.definition} FROM "{model._meta.db_table}" {ending}', params)
    return list(zip(*_fitted(given, rows), strict=True)) if rows else []


def write(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> int:
    """Run a statement and return the number of rows that it changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def set_locally(settings: Mapping[str, str]) -> None:
    """Change settings of PostgreSQL until the transaction ends, all in one statement."""
    fetch(
        f"SELECT {', '.join(['set_config(%s, %s, true)'] * len(settings))}",
        [word for setting in settings.items() for word in setting],
    )


def write_each(statements: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Run each statement for all rows, one statement after the other."""
    with connection.cursor() as cursor:
        for sql in statements:
            cursor.executemany(sql, rows)


@contextmanager
def pipelined() -> Iterator[None]:
    """Send statements to PostgreSQL without waiting for each result; wait for all results at the end.

    Until the end, errors and the numbers of changed rows are not known. With SQLite, nothing changes.
    """
    if connection.vendor != "postgresql":
        yield
        return
    connection.ensure_connection()
    driver: Any = connection.connection
    with connection.wrap_database_errors, driver.pipeline():
        yield


@contextmanager
def planned_once() -> Iterator[None]:
    """Prepare statements at their first use, so that PostgreSQL can keep their plans.

    This is for statements that take longer to plan than to run. A kept plan stays good if the statement reads
    no tables, or reads them only by indexes; the caller must make sure of that. With SQLite, nothing changes.
    """
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
    """Convert a time that `fetch` returned to an aware datetime.

    SQLite stores times as text in UTC, without a time zone.
    """
    if isinstance(at, str):
        return datetime.fromisoformat(at if at[-3] in "+-" else f"{at}+00:00")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def naive(at: datetime) -> str:
    """Return the time as SQLite stores it: in UTC, without a time zone."""
    return written(at)[:-6]


def written(at: datetime) -> str:
    """Return the time as text in UTC.

    The time is converted to UTC before the cached call. Otherwise, the cache could return the wrong text: in
    autumn, an hour occurs twice on local clocks, and Python treats both occurrences of a time as equal.
    """
    return _written(at if at.tzinfo is UTC else at.astimezone(UTC))


@lru_cache(maxsize=4096)
def _written(at: datetime) -> str:
    return at.isoformat(" ")


def placeholders(rows: Sequence[Sequence[Any]]) -> str:
    """Return the placeholders of a VALUES list, such as `(%s, %s), (%s, %s)`."""
    return ", ".join([f"({', '.join(['%s'] * len(rows[0]))})"] * len(rows))


class Given(NamedTuple):
    """The columns of a list of rows, and the functions that convert their values (None: no conversion)."""

    names: tuple[str, ...]
    definition: str
    fit: tuple[Callable[[Any], Any] | None, ...]


@lru_cache(maxsize=256)
def _given(vendor: str, model: type[models.Model], fields: tuple[str, ...]) -> Given:
    columns: list[Any] = [model._meta.pk if name == "pk" else model._meta.get_field(name) for name in fields]
    fits = _POSTGRESQL_FITS if vendor == "postgresql" else _SQLITE_FITS
    return Given(
        tuple(column.column for column in columns),
        elements({column.column: column.rel_db_type(connection) or "" for column in columns}),
        tuple(fits.get(kind_of(column)) for column in columns),
    )


def elements(columns: Mapping[str, str]) -> str:
    """Return SQL that gives names and types to the values of a row `x`, which is a JSON array.

    `columns` contains the type of each name, in the order of the values. JSON objects would repeat the names
    in every row, and take twice as long to read as arrays.
    """
    return ", ".join(
        f'{_element(place, kind)} AS "{name}"' for place, (name, kind) in enumerate(columns.items())
    )


def _element(place: int, kind: str) -> str:
    if kind == "jsonb":
        return f"NULLIF(x->{place}, 'null')"
    # A cast to varchar(n) would truncate long text. Without the cast, the column refuses such text.
    return f"(x->>{place})::{'text' if kind.startswith('varchar') else kind}"


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
    # SQLite does not accept an alias after RETURNING, while PostgreSQL finds the bare name ambiguous.
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
    unless_known: bool,
    returning: str,
) -> str:
    columns = ", ".join(f'"{name}"' for name in names + shared)
    values = ", ".join([f'v."{name}"' for name in names] + ["%s"] * len(shared))
    # PostgreSQL may join the rows with the tables that the condition reads, which can change their order.
    order = " ORDER BY v.nth" if where and vendor == "postgresql" else ""
    ending = " ON CONFLICT DO NOTHING" if unless_known else ""
    ending += f" RETURNING {returning}" if returning else ""
    return (
        f'INSERT INTO "{model._meta.db_table}" ({columns}) '
        f"SELECT {values} FROM v WHERE {where or '1 = 1'}{order}{ending}"
    )


def _write(
    vendor: str,
    given: Given,
    rows: Iterable[Sequence[Any]],
    statement: str,
    params: Sequence[Any],
    *,
    waits: bool = False,
) -> list[tuple[Any, ...]]:
    """Write the rows and return the result; within a pipeline, return it only if `waits`."""
    listed = _listed_as_json if vendor == "postgresql" else _listed_as_values
    written: list[tuple[Any, ...]] = []
    with connection.cursor() as cursor:
        for part in slices(list(rows), columns=len(given.names)):
            listing, values = listed(given, part)
            cursor.execute(f"WITH {listing} {statement}", [*values, *params])
            if waits or cursor.description:
                written += cursor.fetchall()
    return written


def _listed_as_json(given: Given, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """Return the SQL of a table `v` that has all rows, and a list with its only parameter, a JSON text.

    With one parameter, the driver needs only a third of the time that it needs for a VALUES list.
    """
    text = json.dumps(list(zip(*_fitted(given, rows), strict=True)))
    listed = "jsonb_array_elements(%s) WITH ORDINALITY AS given(x, nth)"
    return f"v AS (SELECT {given.definition}, nth FROM {listed})", [text]


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
    """Yield slices of the rows, each small enough for one statement, whose number of variables is limited."""
    size = VARIABLES_PER_STATEMENT // columns
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _hex(key: UUID | str) -> str:
    return str(key).replace("-", "")


# The values of most JSON columns in most rows.
_EMPTY: dict[str, Callable[[], Any]] = {"[]": list, "{}": dict}


def loaded(text: str) -> Any:
    """Parse stored JSON; return invalid text unchanged, so that the caller can report what is wrong."""
    if text in _EMPTY:
        return _EMPTY[text]()
    try:
        return json.loads(text)
    except ValueError:
        return text


_POSTGRESQL_FITS: dict[str, Callable[[Any], Any]] = {
    "DateTimeField": written,
    "UUIDField": str,
}
_SQLITE_FITS: dict[str, Callable[[Any], Any]] = {
    "DateTimeField": naive,
    "UUIDField": _hex,
    "JSONField": json.dumps,
}
_POSTGRESQL_READS: dict[str, Callable[[Any], Any]] = {"JSONField": loaded}
_SQLITE_READS: dict[str, Callable[[Any], Any]] = {
    "BooleanField": bool,
    "DateTimeField": instant,
    "JSONField": loaded,
    "UUIDField": UUID,
}
