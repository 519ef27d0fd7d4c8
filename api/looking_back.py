"""Lists by what no index knows: a table of millions is looked through a part at a time, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Max, QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor
from rest_framework.request import Request

from database.statements import first_since

from .filtering import MomentFilter
from .paging import FORGED, KeysetPages

# Who commits later may have an earlier time than the ids before it.
SLACK = timedelta(minutes=10)


class Times(NamedTuple):
    """The filters that narrow down to a time, which grows with the ids; how many rows a page looks at."""

    column: str
    after: str
    before: str
    reach: int


class PartByPart(KeysetPages):
    """A page may have few rows, or none, and still be followed by another: each looks only so far."""

    # By which the rows are in the order of their time.
    key = "pk"
    is_part = False
    following: int | None = None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        if not view.is_looked_for():
            return super().paginate_queryset(queryset, request, view)
        self.is_part, self.request, self.base_url = True, request, request.build_absolute_uri()
        self.get_ordering(request, queryset, view)
        size, floor, top = self.get_page_size(request), *self._reaching(request, view)
        bottom = max(top - view.times.reach, floor)
        part = {f"{self.key}__gte": bottom, f"{self.key}__lt": top}
        found: Sequence[Any] = list(queryset.filter(**part).order_by(f"-{self.key}")[: size + 1])
        if len(found) > size:
            self.following = getattr(found[size - 1], self.key)
        elif bottom > floor and self.rows(view).filter(**{f"{self.key}__lt": bottom}).exists():
            self.following = bottom
        return found[:size]

    def rows(self, view: Any) -> QuerySet[Any]:
        """All that can be looked through."""
        rows: QuerySet[Any] = view.queryset
        return rows

    def get_next_link(self) -> str | None:
        if not self.is_part:
            return super().get_next_link()
        if self.following is None:
            return None
        return self.encode_cursor(Cursor(offset=0, reverse=False, position=self.following))

    def get_previous_link(self) -> str | None:
        return None if self.is_part else super().get_previous_link()

    def _reaching(self, request: Request, view: Any) -> tuple[int, int]:
        """From which id on, and below which."""
        rows, times = self.rows(view), view.times
        after, before = (_moment(request, name) for name in (times.after, times.before))
        floor = _id_at(rows, times.column, after - SLACK) if after else 0
        position = self._position(request)
        if position is not None:
            return floor, position
        if before is not None:
            return floor, _id_at(rows, times.column, before + SLACK)
        return floor, (rows.aggregate(top=Max(self.key))["top"] or 0) + 1

    def _position(self, request: Request) -> int | None:
        try:
            cursor = self.decode_cursor(request)
            return None if cursor is None or cursor.reverse else int(str(cursor.position)[:18])
        except (NotFound, ValueError) as error:
            raise ValidationError({"cursor": FORGED}) from error


def _moment(request: Request, name: str) -> datetime | None:
    """As its filter has found it to be right."""
    text = request.query_params.get(name)
    moment: datetime | None = MomentFilter().field.clean(text) if text else None
    return moment


def _id_at(rows: QuerySet[Any], column: str, at: datetime) -> int:
    return first_since(rows.model, column, at)
