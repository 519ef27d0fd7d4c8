"""Pagination of lists whose filters have no index. Each page scans a limited part of the history."""

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


class HistoryRange(NamedTuple):
    """How a list is scanned: the time column, the filters on that column, and the rows to scan per page."""

    column: str
    after: str
    before: str
    reach: int


class HistoryPages(KeysetPages):
    """Pages that scan a limited number of rows. Even a short or empty page can have a next page."""

    # A column whose order is chronological.
    key = "pk"
    is_part = False
    following: int | None = None

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        if not view.scans_history():
            return super().paginate_queryset(queryset, request, view)
        self.is_part, self.request, self.base_url = True, request, request.build_absolute_uri()
        self.get_ordering(request, queryset, view)
        scanned: HistoryRange = view.history_range
        part = look_back(
            queryset,
            after=self._position(request),
            count=self.get_page_size(request),
            reach=scanned.reach,
            by=scanned.column,
            since=_moment(request, scanned.after),
            until=_moment(request, scanned.before),
            among=self.rows(view),
            key=self.key,
        )
        self.following = part.next
        return part.rows

    def rows(self, view: Any) -> QuerySet[Any]:
        """Return all rows that can be scanned."""
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
    """Return the value of a time filter, which has already been validated."""
    text = request.query_params.get(name)
    moment: datetime | None = MomentFilter().field.clean(text) if text else None
    return moment
