"""Forms that a verb of their model saves, which may still refuse what the form let through."""

from __future__ import annotations

from collections.abc import Callable
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


class Difference(NamedTuple):
    label: str
    theirs: str
    yours: str


class Overtaken(NamedTuple):
    """Somebody else saved it first: who, and where it is not what was typed here."""

    change: Activity | None
    differences: list[Difference]


def save(form: forms.BaseForm, verb: Callable[[dict[str, Any]], T]) -> T | None:
    """What the verb returns; None if there is nothing to save, or it is refused, which the form then says.

    A Conflict goes on to the caller, who knows what the other one saved.
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
    """What was typed stays, and counts for the newest version: saving it again is a decision."""
    form.data = form.data.copy()
    form.data[VERSION] = str(conflict.token)
    stored = type(form)(instance=type(target)._default_manager.get(pk=target.pk))
    differences = [
        Difference(str(form[name].label), _shown(stored, name), _shown(form, name))
        for name in stored.fields
        if name != VERSION and getattr(stored.instance, name) != getattr(form.instance, name)
    ]
    return Overtaken(records_of(target).order_by("-pk").first(), differences)


def _shown(form: Any, name: str) -> str:
    value = form[name].value()
    return "" if value is None else str(value)
