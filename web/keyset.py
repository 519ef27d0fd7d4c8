"""Lists by key: a table of millions is neither counted nor skipped through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest

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


def newest_first(
    request: HttpRequest, rows: QuerySet[M], *, key: str = "pk", within: str = "", count: int = ROWS
) -> Pages[M]:
    """`key` grows with the rows, and an index has them in its order, or in the order of both."""
    before = whole_number(request.GET.get(OLDER, ""))
    if before is not None:
        rows = rows.filter(**{f"{key}__lt": before})
    found = list(rows.order_by(*filter(None, [within]), f"-{key}")[: count + 1])
    shown = found[:count]
    older = address(request, **{OLDER: getattr(shown[-1], key)}) if len(found) > count else ""
    return Pages(shown, older, address(request, **{OLDER: ""}) if before is not None else "")


def address(request: HttpRequest, **changed: Any) -> str:
    """This address with other parameters; an empty one is left out."""
    query = request.GET.copy()
    query.pop("version", None)  # what a part of the page says when it asks for news
    for name, value in changed.items():
        query.pop(name, None)
        if value not in ("", None):
            query[name] = str(value)
    return f"{request.path}?{query.urlencode()}" if query else request.path
