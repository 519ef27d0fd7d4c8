"""Forms that are saved by a method of their model, which can refuse values that the form accepts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from .field_errors import FieldError, field_errors, in_words, path_of

NO_VERSION = "The form was submitted without a version number. Reload the page and make your change again."


def complain(form: forms.BaseForm, error: ValidationError) -> None:
    """Add each error to its field, or to the whole form if the form has no such field."""
    for each in field_errors(error):
        form.add_error(*placed(form, each))


def placed(form: forms.BaseForm, error: FieldError) -> tuple[str | None, str]:
    """Return the form field of an error (None for the whole form) and the message to show.

    For an error inside a JSON field, the message names the setting.
    """
    # An error without a path concerns the name: the only rule for whole objects is that names are unique.
    head, *inner = error.path or ("name",)
    if head not in form.fields:
        return None, str(error)
    return str(head), f"{in_words(tuple(inner))}: {error.message}" if inner else error.message


class Unsaved(Exception):
    """Errors that the model raised although the forms were valid. The page shows each one at its field."""

    def __init__(self, errors: dict[str, list[str]], *, refusal: str = "") -> None:
        self.own: list[FieldError] = []
        self.steps: list[FieldError] = []
        for error in (FieldError(path_of(key), text) for key, texts in errors.items() for text in texts):
            match error.path:
                case ("steps", *inner):
                    self.steps.append(error._replace(path=tuple(inner)))
                case _:
                    self.own.append(error)
        self.refusal = refusal
        super().__init__(errors, refusal)


class VerbForm:
    """A form that is saved by a method of its model. Fields with form errors do not show model errors."""

    unsaved = Unsaved({})

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data  # type: ignore[misc,attr-defined]
        if self.instance.pk and "version" in self.fields and cleaned.get("version") is None:  # type: ignore[attr-defined]
            self.add_error(None, NO_VERSION)
        if self.unsaved.refusal:
            self.add_error(None, self.unsaved.refusal)
        for error in self.unsaved.own:
            self.add_error(*self.placed(error))
        return cleaned

    def add_error(self, field: str | None, error: Any) -> None:
        if field is not None or not hasattr(error, "error_dict"):
            super().add_error(field, error)  # type: ignore[misc]
            return
        known = set(self.errors)  # type: ignore[attr-defined]
        for each in field_errors(error):
            name, text = self.placed(each)
            if name not in known:
                super().add_error(name, ValidationError(text, code=each.code))  # type: ignore[misc]

    def placed(self, error: FieldError) -> tuple[str | None, str]:
        return placed(self, error)  # type: ignore[arg-type]
