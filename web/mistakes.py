"""The summary of the errors of a form, each with a link to its field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django import forms


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
