"""How a form shows what its model refuses."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError


def complain(form: forms.Form, error: ValidationError) -> None:
    """At the fields that it is about, as far as the form has them."""
    for name, texts in getattr(error, "error_dict", {None: error}).items():
        form.add_error(name if name in form.fields else None, texts)


class Unsaved(Exception):
    """What the model said when the forms had nothing left to say: shown on the same page, by field."""

    def __init__(self, errors: dict[str, list[str]]) -> None:
        self.steps = errors.pop("steps", [])
        self.fields = errors
        super().__init__(errors)


class OneComplaint:
    """What the form says about a field hides what the model would add to it."""

    def add_error(self, field: str | None, error: Any) -> None:
        known: dict[str, Any] = self.errors  # type: ignore[attr-defined]
        if field is None and hasattr(error, "error_dict"):
            fresh = {name: each for name, each in error.error_dict.items() if name not in known}
            if fresh:
                super().add_error(None, ValidationError(fresh))  # type: ignore[misc]
        else:
            super().add_error(field, error)  # type: ignore[misc]
