"""Long lists on pages: the newest rows first, with links to what comes next."""

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
    """The address of what comes next, if there is more."""
    newest: str = ""
    """The address of the beginning, if this is not it."""
    reached_at: datetime | None = None
    """How far back was looked, if there is more to look through."""
    further: str = ""


def newest_first(request: HttpRequest, rows: QuerySet[M], *, key: str = "pk", within: str = "") -> Pages[M]:
    """`key` grows with the rows, and an index has them in its order, or in the order of both."""
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
    """`by` is the time that grows with the ids; the rows come newest first, already filtered."""
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
    """The same for rows that one index has in the order of `key`, or of both: so many of them at a time."""
    after = _before(request)
    return _linked(
        request,
        keyset.look_among(rows, wanted, after=after, count=ROWS, reach=reach, by=by, key=key, within=within),
    )


def address(request: HttpRequest, **changed: Any) -> str:
    """This address with other parameters; an empty one is left out."""
    query = request.GET.copy()
    query.pop("version", None)  # what a part of the page says when it asks for news
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
