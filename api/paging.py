from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

MOST = 500


class KeysetPages(CursorPagination):
    """By key: a table of millions is neither counted nor skipped through."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = MOST
    cursor_query_param = "cursor"
    invalid_cursor_message = "This cursor is not one that was given out: begin without one."

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        try:
            return super().paginate_queryset(queryset, request, view)
        except NotFound as error:
            raise ValidationError({"cursor": str(error.detail)}) from error

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get("limit", str(self.page_size))
        if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST):
            raise ValidationError({"limit": f"A whole number from 1 to {MOST}."})
        return int(text)

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        orderings = list(view.orderings)
        wanted = request.query_params.get("ordering", orderings[0])
        if wanted not in orderings:
            raise ValidationError({"ordering": f"One of: {', '.join(orderings)}."})
        return (wanted,)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        parameters = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == "limit":
                parameter["schema"] = {"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}
        orderings = list(getattr(view, "orderings", ()))
        if len(orderings) > 1:
            schema = {"type": "string", "enum": orderings, "default": orderings[0]}
            parameters.append({"name": "ordering", "in": "query", "required": False, "schema": schema})
        return parameters
