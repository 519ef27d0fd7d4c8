"""Filters of lists, which reject values that Django's form fields would misread or ignore.

Django reads "maybe" as no filter and " 3.0" as 3; here, both are errors. tests/test_bad_lists.py checks that
an unreadable filter never returns the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError as Invalid
from django_filters import filters as plain
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema_field
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from schedules.spec import SpecError
from schedules.spec.moments import clock_reading
from text.clean import LONGEST_SEARCH

OF_PAGES = ("cursor", "limit", "ordering")


class _Flag(forms.Field):
    def to_python(self, value: Any) -> bool | None:
        if value in (None, "true", "false"):
            return None if value is None else value == "true"
        raise Invalid("Enter “true” or “false”.")


class _Whole(forms.Field):
    def to_python(self, value: Any) -> int | None:
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,18}", str(value)):
            raise Invalid("Enter a whole number.")
        return int(value)


class _Moment(forms.Field):
    def to_python(self, value: Any) -> datetime | None:
        if value is None:
            return None
        try:
            # A plus sign that was not escaped arrives as a space.
            moment = clock_reading("", re.sub(r" (?=[0-9]{2}:?[0-9]{2}$)", "+", str(value)))
        except SpecError as error:
            raise Invalid(error.message) from error
        if moment.tzinfo is None:
            raise Invalid("Add the UTC offset to the time, as in 2026-12-01T09:00:00Z.")
        return moment


class FlagFilter(plain.BooleanFilter):
    field_class = _Flag  # type: ignore[assignment]


class WholeFilter(plain.NumberFilter):
    field_class = _Whole  # type: ignore[assignment]


class MomentFilter(plain.IsoDateTimeFilter):
    field_class = _Moment  # type: ignore[assignment]


class TextFilter(plain.CharFilter):
    """A text filter of limited length, because SQLite refuses search patterns longer than 50 kB."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, max_length=LONGEST_SEARCH, **options)


class _Words(forms.Field):
    widget = forms.MultipleHiddenInput

    def to_python(self, value: Any) -> list[str]:
        words = [str(word) for word in value or ()]
        if any("\0" in word for word in words):
            raise Invalid("NUL characters are not allowed.")
        return words


@extend_schema_field({"type": "array", "items": {"type": "string"}})
class WordsFilter(plain.Filter):
    """A text filter that can be used several times in one request."""

    field_class = _Words


class Filters(filters.FilterSet):
    """The base class for the filters of a list. An invalid value causes an error, not an empty list."""


class FilterBackend(filters.DjangoFilterBackend):
    def filter_queryset(self, request: Any, queryset: Any, view: Any) -> Any:
        """Filter lists only. An object that is requested by its id is found regardless of the filters."""
        filterset = None if getattr(view, "detail", False) else self.get_filterset(request, queryset, view)
        if filterset is None:
            return queryset
        _refuse_empty(request, filterset)
        if not filterset.is_valid():
            raise ValidationError({name: list(texts) for name, texts in filterset.errors.items()})
        return filterset.qs


def _refuse_empty(request: Request, filterset: Any) -> None:
    """Refuse empty filters, because they would otherwise be ignored. Text filters may be empty."""
    given = {name for name, value in request.query_params.items() if not value}
    empty = [
        name for name in given & set(filterset.filters) if not isinstance(filterset.filters[name], TextFilter)
    ]
    if empty:
        raise ValidationError(dict.fromkeys(sorted(empty), "Enter a value or leave the parameter out."))


def flag_of(request: Request, name: str) -> bool:
    """Return whether a query parameter is `true`. If the parameter is missing, return False."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise ValidationError({name: "Enter “true” or “false”."})
    return text == "true"


def refuse_unknown(request: Request, known: Collection[str], *, many: Collection[str] = ()) -> None:
    """Refuse unknown parameters, so that a misspelt filter cannot return the whole list.

    Repeated parameters are also refused, unless they are in `many`.
    """
    told = f"Unknown parameter. Available parameters: {', '.join(known) or 'none'}."
    wrong = dict.fromkeys(sorted(set(request.query_params) - set(known)), told)
    for name, values in request.query_params.lists():
        if name in known and len(values) > 1 and name not in many:
            wrong[name] = "Use this parameter only once."
    if wrong:
        raise ValidationError(wrong)
