"""What is wrong with a form, as its summary lists it: each mistake with a link to its field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from django import forms


class Mistake(NamedTuple):
    """`anchor` is the id of the control, or of the place where the mistake is told."""

    label: str
    anchor: str
    texts: Sequence[str]


def anchor_of(bound: forms.BoundField) -> str:
    """The id of its control; of the first one where it has several."""
    return f"{bound.auto_id}_0" if bound.field.widget.use_fieldset else bound.auto_id


def mistakes_of(form: forms.BaseForm) -> list[Mistake]:
    """Those of the fields that are shown; what is about the form as a whole is told beside them."""
    return [
        Mistake(str(bound.label), anchor_of(bound), [str(error) for error in bound.errors])
        for bound in form.visible_fields()
        if bound.errors
    ]
