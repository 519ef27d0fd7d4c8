"""Cursor pagination of lists. If no index covers the filters, each page scans a limited number of rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError as Invalid
from django.db import DataError
from django.db.models import QuerySet
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from database.keyset import look_back
from text.numbers import whole_number

from .filtering import MomentFilter

MOST = 500
FORGED = "The cursor is invalid. Start from the first page, without a cursor."
LINK = {"type": ["string", "null"], "format": "uri"}


class KeysetPages(CursorPagination):
    """Keyset pagination, which does not count the rows of a table and does not skip rows with OFFSET."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = MOST
    cursor_query_param = "cursor"
    invalid_cursor_message = FORGED

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (NotFound, Invalid, ValueError, OverflowError, DataError) as error:
            if "cursor" not in request.query_params:
                raise
            raise ValidationError({"cursor": FORGED}) from error

    def decode_cursor(self, request: Request) -> Cursor | None:
        """Return the cursor. Raise NotFound if it is unreadable, because DRF would return the first page."""
        cursor = super().decode_cursor(request)
        if request.query_params.get("cursor") and cursor == Cursor(offset=0, reverse=False, position=None):
            raise NotFound(FORGED)
        return cursor

    def get_page_size(self, request: Request) -> int:
        return limit_of(request, self.page_size)

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        orderings = list(view.orderings)
        wanted = request.query_params.get("ordering", orderings[0])
        if wanted not in orderings:
            raise ValidationError({"ordering": f"Choose one of: {', '.join(orderings)}."})
        is_unique = wanted.removeprefix("-") in ("id", "pk")
        return (wanted,) if is_unique else (wanted, "-pk" if wanted.startswith("-") else "pk")

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == "limit":
                parameter["schema"] = {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}
        orderings = list(getattr(view, "orderings", ()))
        if len(orderings) > 1:
            schema = {"type": "string", "enum": orderings, "default": orderings[0]}
            ordering = {"name": "ordering", "in": "query", "required": False, "schema": schema}
            parameters.append(
                {
                    **ordering,
                    "description": "The field to sort by. A minus sign before the field means descending "
                    "order.",
                }
            )
        return parameters

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": LINK, "previous": LINK, "results": schema},
        }


def limit_of(request: Request, usual: int, *, name: str = "limit", least: int = 1, most: int = MOST) -> int:
    """Return the value of a query parameter that is a whole number from `least` to `most`.

    If the parameter is missing, return `usual`.
    """
    text = request.query_params.get(name, str(usual))
    number = whole_number(text, digits=9, least=least, most=most)
    if number is None:
        raise ValidationError({name: f"Enter a whole number from {least} to {most}."})
    return number


class HistoryRange(NamedTuple):
    """How to scan a list: its time column, the filters on this column, and how far each page searches.

    `after` and `before` are the names of the filters. `reach` is the number of keys that a page searches.
    """

    column: str
    after: str
    before: str
    reach: int


class HistoryPages(KeysetPages):
    """Pages that each scan a limited number of rows. More rows can follow even a short or empty page."""

    # The column to page by. Its values must be in chronological order.
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
        """Return the rows to scan, before the filters of the request are applied."""
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
