from __future__ import annotations

from typing import Any

from django import forms
from django_filters import rest_framework as filters
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

OF_PAGES = ("cursor", "limit", "ordering")


class Filters(filters.FilterSet):
    """What a list can be narrowed down to; a value that makes no sense is an error, not an empty list."""


class IdFilter(filters.NumberFilter):
    """A whole number that an id can be."""

    field_class = forms.IntegerField

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, min_value=1, max_value=2**63 - 1, **kwargs)


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
