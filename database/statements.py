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
from django.db.models import Func

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
    """Write other values into each row, guarded by `where` (on alias `t`, given values on `v`).

    Each row is (pk, value, …) in the order of `fields`. Returns the keys of the rows that were changed.
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
    """On PostgreSQL: the same for those whose key `fence` returns first, a statement that writes as well.

    Answers what the fence returned; before that, whether the row was changed, and what was asked besides.
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
    """Insert the rows (values on alias `v`) for which `where` holds; return columns of them, in order.

    `same` are fields that have one value in all rows; `unless_known` passes over rows with a known key.
    """
    vendor = connection.vendor
    given = _given(vendor, model, tuple(fields))
    shared = _given(vendor, model, tuple(same or ()))
    constants = list(same.values()) if same else []
    if vendor != "postgresql" and constants:
        constants = [column[0] for column in _fitted(shared, [constants])]
    insert = _insert(vendor, model, given.names, shared.names, where, unless_known, returning)
    return _write(vendor, given, rows, insert, [*constants, *params])


def among(columns: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """Write the condition that `columns` (one, or several in brackets) has one of these values.

    PostgreSQL gets arrays, so that one text serves any number; SQLite has none. It would go through all
    rows for a list of several columns: the first one alone is what it finds on an index.
    """
    is_single = not columns.startswith("(")
    if connection.vendor != "postgresql":
        if is_single:
            return f"{columns} IN ({', '.join(['%s'] * len(values))})", list(values)
        first, firsts = among(columns[1:].partition(",")[0], list(dict.fromkeys(row[0] for row in values)))
        listed = [value for row in values for value in row]
        return f"{first} AND {columns} IN (VALUES {placeholders(values)})", [*firsts, *listed]
    if is_single:
        return f"{columns} = {hidden('bigint')}", [list(values)]
    arrays = [list(column) for column in zip(*values, strict=True)]
    given = ", ".join(["(SELECT %s::bigint[])"] * len(arrays))
    return f"{columns} IN (SELECT * FROM unnest({given}))", arrays


def found_in(chosen: str) -> str:
    """Compare a key with those that a statement chooses.

    An array is looked up by key; PostgreSQL may prefer to join the whole table with what is not one.
    """
    return f"= ANY(ARRAY({chosen}))" if connection.vendor == "postgresql" else f"IN ({chosen})"


def hidden(kind: str) -> str:
    """One of the values of an array, whose length PostgreSQL does not see: it would plan anew for each."""
    return f"ANY(ARRAY(SELECT unnest(%s::{kind}[])))"


def literal(text: str) -> Func:
    """Put a status into the text of the statement.

    SQLite prepares a statement anew each time it is given what the condition of an index may be about.
    """
    return Func(template=f"'{text}'", output_field=models.CharField())


def fetch(sql: str, params: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def read(
    model: type[models.Model], fields: Sequence[str], ending: str, params: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """Read these fields of the rows that the rest of the statement selects, as the ORM would.

    For what is asked often: writing such a statement takes the ORM longer than its answer.
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
    """Change settings of PostgreSQL until the transaction ends, all by one statement."""
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
    """Send statements without waiting for the ones before; wait for all answers at the end.

    Until then PostgreSQL has not said how many rows there were, nor refused anything.
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
    """Plans that take longer than their statements are kept: those that read no table are good for ever.

    So are those that go by indexes alone: a caller that reads tables sets that up first.
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
    """As `fetch` found it: SQLite stores UTC without a zone."""
    if isinstance(at, str):
        return datetime.fromisoformat(at if at[-3] in "+-" else f"{at}+00:00")
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def naive(at: datetime) -> str:
    """As SQLite stores it."""
    return written(at)[:-6]


def written(at: datetime) -> str:
    """In UTC: the two passes of an hour in autumn are equal to Python, and so to a cache."""
    return _written(at if at.tzinfo is UTC else at.astimezone(UTC))


@lru_cache(maxsize=4096)
def _written(at: datetime) -> str:
    return at.isoformat(" ")


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
        elements({column.column: column.rel_db_type(connection) or "" for column in columns}),
        tuple(fits.get(kind_of(column)) for column in columns),
    )


def elements(columns: Mapping[str, str]) -> str:
    """Names and types of the values in a row `x`, which is a JSON array.

    By their places: objects would name each of them in every row, and take twice the time to read.
    """
    return ", ".join(
        f'{_element(place, kind)} AS "{name}"' for place, (name, kind) in enumerate(columns.items())
    )


def _element(place: int, kind: str) -> str:
    if kind == "jsonb":
        return f"NULLIF(x->{place}, 'null')"
    # A cast to a length would cut off what is too long; so it is refused where it is stored.
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
    unless_known: bool,
    returning: str,
) -> str:
    columns = ", ".join(f'"{name}"' for name in names + shared)
    values = ", ".join([f'v."{name}"' for name in names] + ["%s"] * len(shared))
    # PostgreSQL may join the rows with what the condition reads, in any order.
    order = " ORDER BY v.nth" if where and vendor == "postgresql" else ""
    ending = " ON CONFLICT DO NOTHING" if unless_known else ""
    ending += f" RETURNING {returning}" if returning else ""
    return (
        f'INSERT INTO "{model._meta.db_table}" ({columns}) '
        f"SELECT {values} FROM v WHERE {where or '1 = 1'}{order}{ending}"
    )


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
    """No more rows at once than one statement may have variables for."""
    size = VARIABLES_PER_STATEMENT // columns
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _hex(key: UUID | str) -> str:
    return str(key).replace("-", "")


# Most JSON columns of most rows.
_EMPTY: dict[str, Callable[[], Any]] = {"[]": list, "{}": dict}


def loaded(text: str) -> Any:
    """Parse stored JSON; return damaged text as it is, so that its user can say what is wrong."""
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
