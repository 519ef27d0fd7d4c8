"""The data that a browser sends for a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from text.clean import clean_text

Sent = dict[str, list[str]]


def sent(field: forms.Field, value: Any) -> list[str]:
    """Return the strings that a browser sends for a field that shows this value."""
    value = field.prepare_value(value)
    if isinstance(value, list | tuple):
        return [clean_text(str(each)) for each in value]
    if isinstance(field, forms.BooleanField):
        return ["on"] if value else []
    return [] if value is None else [clean_text(str(value))]


def data_of(form: forms.BaseForm) -> Sent:
    """Return the data that a browser sends for a form in which nothing is changed."""
    data = {bound.html_name: sent(bound.field, bound.initial) for bound in form}
    hidden = (bound for bound in form if bound.field.show_hidden_initial)
    return data | {bound.html_initial_name: data[bound.html_name] for bound in hidden}


def put(data: Any, values: Mapping[str, list[str]]) -> None:
    """Replace values in a QueryDict, or in a dict that has one value for each name."""
    for name, each in values.items():
        data.pop(name, None)
        if each and hasattr(data, "setlist"):
            data.setlist(name, each)
        elif each:
            data[name] = each[-1]
