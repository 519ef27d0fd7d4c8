from __future__ import annotations

from typing import Any

from django_filters import rest_framework as filters
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

OF_PAGES = ("cursor", "limit", "ordering")


class Filters(filters.FilterSet):
    """What a list can be narrowed down to; a value that makes no sense is an error, not an empty list."""


class FilterBackend(filters.DjangoFilterBackend):
    def filter_queryset(self, request: Any, queryset: Any, view: Any) -> Any:
        filterset = self.get_filterset(request, queryset, view)
        if filterset is None:
            return queryset
        if not filterset.is_valid():
            raise ValidationError({name: list(texts) for name, texts in filterset.errors.items()})
        return filterset.qs


def refuse_unknown(request: Request, known: list[str]) -> None:
    """Whoever misspells a filter must not take everything for what was asked for."""
    if unknown := sorted(set(request.query_params) - set(known)):
        told = f"There is no such parameter here; there are: {', '.join(known) or 'none'}."
        raise ValidationError(dict.fromkeys(unknown, told))
