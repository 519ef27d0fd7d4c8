"""Cursor pagination of lists."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as Invalid
from django.db import DataError
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from text.numbers import whole_number

MOST = 500
FORGED = "The cursor is invalid. Start from the first page, without a cursor."
LINK = {"type": ["string", "null"], "format": "uri"}


class KeysetPages(CursorPagination):
    """Keyset pagination, which neither counts the rows of a table nor skips over them with OFFSET."""

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
        """Raise NotFound for an unreadable cursor, which DRF would treat as the first page."""
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
            parameters.append({**ordering, "description": "The sort order. A minus sign means descending."})
        return parameters

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": LINK, "previous": LINK, "results": schema},
        }


def limit_of(request: Request, usual: int, *, name: str = "limit", least: int = 1, most: int = MOST) -> int:
    """Return a whole number from the query parameters."""
    text = request.query_params.get(name, str(usual))
    number = whole_number(text, digits=9, least=least, most=most)
    if number is None:
        raise ValidationError({name: f"Enter a whole number from {least} to {most}."})
    return number
