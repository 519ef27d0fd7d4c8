"""Pages of long lists: the newest rows first, with links to the next page and to the first page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

from database import keyset
from text.numbers import whole_number

M = TypeVar("M", bound=Model)
ROWS = 50
OLDER = "before"


@dataclass(frozen=True)
class Pages(Generic[M]):
    rows: list[M]
    older: str = ""
    """The address of the next page; empty on the last page, or if the search stopped early: see `further`."""
    newest: str = ""
    """The address of the first page, empty on the first page itself."""
    reached_at: datetime | None = None
    """How far back the search went; None unless it stopped before the oldest row."""
    further: str = ""


def newest_first(request: HttpRequest, rows: QuerySet[M], *, key: str = "pk", within: str = "") -> Pages[M]:
    """Return a page of rows, those with the highest `key` first.

    An index must provide this order. If a column precedes `key` in the index, `within` names this column.
    """
    part = keyset.read_page(rows, after=_before(request), count=ROWS, key=key, within=within)
    return _linked(request, part)


def look_back(
    request: HttpRequest,
    rows: QuerySet[M],
    *,
    by: str,
    since: datetime | None = None,
    until: datetime | None = None,
    reach: int,
) -> Pages[M]:
    """Return a page of `rows`, newest first; search only the next `reach` rows of the whole table for them.

    `by` is a column of times that increase with the id; `since` and `until` are the bounds of these times.
    """
    rows = rows.filter(_between(by, since, until))
    after = _before(request)
    return _linked(
        request,
        keyset.look_back(rows, after=after, count=ROWS, reach=reach, by=by, since=since, until=until),
    )


def look_among(
    request: HttpRequest,
    rows: QuerySet[M],
    wanted: Q,
    *,
    key: str = "pk",
    within: str = "",
    by: str,
    reach: int,
) -> Pages[M]:
    """Return a page of the `wanted` rows, newest first; search only the next `reach` of `rows` for them.

    `key` and `within` are as in `newest_first`, and `by` is a column of times that increase with the key.
    """
    after = _before(request)
    return _linked(
        request,
        keyset.look_among(rows, wanted, after=after, count=ROWS, reach=reach, by=by, key=key, within=within),
    )


def address(request: HttpRequest, **changed: Any) -> str:
    """Return the address of the request with some parameters changed, or removed if their value is empty."""
    query = request.GET.copy()
    query.pop("version", None)  # sent by a part of the page when it polls
    for name, value in changed.items():
        query.pop(name, None)
        if value not in ("", None):
            query[name] = str(value)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def _before(request: HttpRequest) -> int | None:
    return whole_number(request.GET.get(OLDER, ""))


def _linked(request: HttpRequest, part: keyset.Part[M]) -> Pages[M]:
    newest = "" if _before(request) is None else address(request, **{OLDER: ""})
    following = "" if part.next is None else address(request, **{OLDER: part.next})
    if part.reached_at is None:
        return Pages(part.rows, following, newest)
    return Pages(part.rows, "", newest, part.reached_at, following)


def _between(by: str, since: datetime | None, until: datetime | None) -> Q:
    return (Q(**{f"{by}__gte": since}) if since else Q()) & (Q(**{f"{by}__lt": until}) if until else Q())
