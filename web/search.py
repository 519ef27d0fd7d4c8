from __future__ import annotations

from typing import Any

from django import forms

from text.clean import LONGEST_SEARCH, search_text


class SearchField(forms.CharField):
    """Takes whatever is typed: a list that ignored it would show everything as if it had been found."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, max_length=LONGEST_SEARCH, **options)

    def to_python(self, value: Any) -> str:
        return search_text(super().to_python(value) or "")


def search_box(placeholder: str = "") -> SearchField:
    attributes = {"type": "search", "placeholder": placeholder} if placeholder else {"type": "search"}
    return SearchField(label="Search", widget=forms.TextInput(attrs=attributes))
