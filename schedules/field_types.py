"""Strict type checks for model fields. Django's own checks accept "3", true and infinity as numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models

from text.clean import map_json

from .spec.wording import shown


class StrictlyTyped(models.Model):
    """A model that refuses values of the wrong type, such as "3" for a number, instead of converting them."""

    class Meta:
        abstract = True

    def full_clean(self, exclude: Iterable[str] | None = None, *args: Any, **kwargs: Any) -> None:
        """Check the types first, because `clean` relies on them."""
        exclude = set(exclude or ())
        self.check_types(exclude)
        super().full_clean(exclude, *args, **kwargs)

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        self.check_types(exclude)
        super().clean_fields(exclude=exclude)

    def check_types(self, exclude: Collection[str] | None = None) -> None:
        checked = [field for field in self._meta.concrete_fields if field.name not in (exclude or ())]
        found = {field.name: type_complaint(field, getattr(self, field.attname)) for field in checked}
        if complaints := {name: words for name, words in found.items() if words}:
            raise ValidationError(complaints)


def type_complaint(field: models.Field[Any, Any], value: Any) -> str:
    """Return why a value does not have the type of its field, or an empty string if it does.

    For a JSON field, only the depth of the value is checked here; the model checks the content.
    """
    if value is None and not isinstance(field, models.JSONField):
        return "" if field.null or field.primary_key else "This field cannot be null."
    match field:
        case models.BooleanField():
            wanted, is_right = "true or false", isinstance(value, bool)
        case models.AutoField() | models.ForeignKey():
            return ""
        case models.JSONField():
            return _depth_complaint(value)
        case models.IntegerField():
            wanted, is_right = "a whole number", isinstance(value, int) and not isinstance(value, bool)
        case models.FloatField():
            wanted, is_right = "a number", _is_number(value)
        case models.CharField() | models.TextField():
            wanted, is_right = "text in quotes", isinstance(value, str)
        case _:
            return ""
    return "" if is_right else f"expected {wanted}, found {shown(value)}"


def _depth_complaint(value: Any) -> str:
    try:
        map_json(value, lambda leaf: leaf)
    except ValueError as error:
        return str(error)
    return ""


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number that a float can hold."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
