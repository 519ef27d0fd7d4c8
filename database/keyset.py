"""Keyset pagination, which neither counts nor skips rows, however large the table is.

Pages, the API and the admin read long lists with these functions; each builds its own links to the next page.
`read_page` is for rows that an index provides in the order of their key. `look_back` and `look_among` are for
conditions that no index covers: they search a part of the table at a time, newest rows first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Model, Q, QuerySet

from .batched import Statement, together

M = TypeVar("M", bound=Model)
# Times do not grow strictly with ids: a row can have an earlier time than rows with lower ids.
SLACK = timedelta(minutes=10)


@dataclass(frozen=True)
class Part(Generic[M]):
    """The rows of one page, and where the next page begins."""

    rows: list[M]
    next: int | None = None
    """The key after which the next page begins; None on the last page."""
    reached_at: datetime | None = None
    """How far back in time the search went; None if the page is full or no rows are left to search."""


def read_page(
    rows: QuerySet[M],
    *,
    after: int | None = None,
    count: int,
    key: str = "pk",
    within: str = "",
    oldest_first: bool = False,
) -> Part[M]:
    """Read one page of at most `count` rows, which begins after the key `after`.

    `key` is the column by which to sort. If the index begins with another column, `within` is that column.
    """
    order, beyond = (key, f"{key}__gt") if oldest_first else (f"-{key}", f"{key}__lt")
    if after is not None:
        rows = rows.filter(**{beyond: after})
    return _page(list(rows.order_by(*filter(None, [within]), order)[: count + 1]), count, key)


def look_back(
    rows: QuerySet[M],
    *,
    after: int | None = None,
    count: int,
    reach: int,
    by: str,
    since: datetime | None = None,
    until: datetime | None = None,
    among: QuerySet[M] | None = None,
    key: str = "pk",
) -> Part[M]:
    """Read a page of a filtered queryset, newest first, but search only the next `reach` keys below `after`.

    `by` is a column of times that grow with the keys. `among` is the queryset without the filter; the default
    is the whole table. `since` and `until` limit the search to rows between these times; this works only if
    the key is the id.
    """
    every: Any = rows.model._default_manager.all() if among is None else among
    top, floor = _bounds(every, key, by, since, until)
    top = top if after is None else after
    bottom = max(top - reach, floor, 0)
    near = rows.filter(**{f"{key}__gte": bottom, f"{key}__lt": top}).order_by(f"-{key}")
    beyond = every.filter(**{f"{key}__lt": bottom}) if bottom > floor else every.none()
    found, reached = together(near[: count + 1], beyond.order_by(f"-{key}").values_list(by, flat=True)[:1])
    return _page(found, count, key, bottom, next(iter(reached), None))


def look_among(
    rows: QuerySet[M],
    wanted: Q,
    *,
    after: int | None = None,
    count: int,
    reach: int,
    by: str,
    key: str = "pk",
    within: str = "",
) -> Part[M]:
    """Read a page of rows that meet the condition `wanted`, newest first.

    Only the next `reach` rows below the key `after` are searched.
    An index must provide the rows in the order of `key`. `by` is a column of times that grow with the keys.
    """
    among: Any = rows.order_by(*filter(None, [within]), f"-{key}")
    if after is not None:
        among = among.filter(**{f"{key}__lt": after})
    beyond = among.values_list(key, flat=True)[reach : reach + 1].first()
    near = among if beyond is None else among.filter(**{f"{key}__gt": beyond})
    last = rows.none() if beyond is None else rows.filter(**{key: beyond})
    found, reached = together(near.filter(wanted)[: count + 1], last.values_list(by, flat=True))
    return _page(found, count, key, (beyond or 0) + 1, next(iter(reached), None))


def _page(
    found: list[M], count: int, key: str, bottom: int | None = None, reached_at: datetime | None = None
) -> Part[M]:
    """Build a page. If more than `count` rows were found, another page follows."""
    if len(found) > count:
        return Part(found[:count], getattr(found[count - 1], key))
    return Part(found) if reached_at is None else Part(found, bottom, reached_at)


def _bounds(
    every: QuerySet[Any], key: str, by: str, since: datetime | None, until: datetime | None
) -> tuple[int, int]:
    """Return the bounds of the keys of the rows between two times: the upper one (excluded), then the lower.

    If a time is None, the bound is that of all rows.
    """
    newest = every.order_by(f"-{key}").values_list(key, flat=True)[:1]
    times = [at for at in (until and until + SLACK, since and since - SLACK) if at]
    ids, *firsts = together(newest, *(first_since(every.model, by, at) for at in times))
    top, found = next(iter(ids), 0) + 1, [first for [[first]] in firsts]
    return min(top, found[0]) if until else top, found[-1] if since else 0


def first_since(model: type[Model], column: str, at: datetime) -> Statement:
    """Build a statement that finds the first id whose time is at or after `at`, if times grow with ids.

    The statement is a binary search, so that a large table needs no index on its times.
    """
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
    return Statement(sql, [time, time], columns=1)
