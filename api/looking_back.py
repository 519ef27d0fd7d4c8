"""Lists by what no index knows, looked through a part at a time: the cursors of the API."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor
from rest_framework.request import Request

from database.keyset import look_back
from text.numbers import whole_number

from .filtering import MomentFilter
from .paging import FORGED, KeysetPages


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
        times: Times = view.times
        part = look_back(
            queryset,
            after=self._position(request),
            count=self.get_page_size(request),
            reach=times.reach,
            by=times.column,
            since=_moment(request, times.after),
            until=_moment(request, times.before),
            among=self.rows(view),
            key=self.key,
        )
        self.following = part.next
        return part.rows

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

    def _position(self, request: Request) -> int | None:
        try:
            cursor = self.decode_cursor(request)
        except NotFound as error:
            raise ValidationError({"cursor": FORGED}) from error
        if cursor is None or cursor.reverse:
            return None
        position = whole_number(str(cursor.position))
        if position is None:
            raise ValidationError({"cursor": FORGED})
        return position


def _moment(request: Request, name: str) -> datetime | None:
    """As its filter has found it to be right."""
    text = request.query_params.get(name)
    moment: datetime | None = MomentFilter().field.clean(text) if text else None
    return moment
