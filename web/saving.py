"""Save forms through methods of models, which can refuse valid input, and summarize the errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model

from activities.models import Activity
from operations.form_errors import complain
from schedules.models import Conflict, Refused
from schedules.revisions import records_of
from schedules.vault import VaultError

T = TypeVar("T")
VERSION = "version"


class Mistake(NamedTuple):
    """The errors of one field; `anchor` is the id of the control, or of the element that shows the errors."""

    label: str
    anchor: str
    texts: Sequence[str]


def anchor_of(bound: forms.BoundField) -> str:
    """Return the id of the field's control, or of the first control if there are several."""
    return f"{bound.auto_id}_0" if bound.field.widget.use_fieldset else bound.auto_id


def mistakes_of(form: forms.BaseForm) -> list[Mistake]:
    """Return the errors of the visible fields; errors of the whole form are shown separately."""
    return [
        Mistake(str(bound.label), anchor_of(bound), [str(error) for error in bound.errors])
        for bound in form.visible_fields()
        if bound.errors
    ]


class Difference(NamedTuple):
    label: str
    theirs: str
    yours: str


class Overtaken(NamedTuple):
    """An edit conflict: the record of the change that another user saved first, and the differences."""

    change: Activity | None
    differences: list[Difference]


def save(form: forms.BaseForm, verb: Callable[[dict[str, Any]], T]) -> T | None:
    """Pass the valid input to `verb` and return its result, or return None if the form has errors.

    If `verb` refuses the input, its errors are added to the form. A Conflict is not caught, because only the
    caller knows the stored version.
    """
    if not form.is_valid():
        return None
    try:
        return verb(form.cleaned_data)
    except (Refused, VaultError) as refused:
        form.add_error(None, str(refused))
    except ValidationError as error:
        complain(form, error)
    return None


def overtaken(form: Any, target: Model, conflict: Conflict) -> Overtaken:
    """Describe the conflict, and put the newest version number into the form.

    If the user then saves again, the form replaces the newest version.
    """
    form.data = form.data.copy()
    form.data[VERSION] = str(conflict.token)
    stored = type(form)(instance=type(target)._default_manager.get(pk=target.pk))
    differences = [
        Difference(str(form[name].label), _field_text(stored, name), _field_text(form, name))
        for name in stored.fields
        if name != VERSION and getattr(stored.instance, name) != getattr(form.instance, name)
    ]
    return Overtaken(records_of(target).order_by("-pk").first(), differences)


def _field_text(form: Any, name: str) -> str:
    value = form[name].value()
    return "" if value is None else str(value)
