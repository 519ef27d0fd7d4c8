from __future__ import annotations

from typing import TYPE_CHECKING

from django import forms

from execution.models import Limit
from operations.form_errors import VerbForm

if TYPE_CHECKING:
    LimitModelForm = forms.ModelForm[Limit]
else:
    LimitModelForm = forms.ModelForm


class LimitForm(VerbForm, LimitModelForm):
    class Meta:
        model = Limit
        fields = ("key", "size", "note")
        help_texts = {
            "key": "What it is about: <code>global</code>, <code>pool:default</code>, <code>type:sql</code>, "
            "<code>resource:…</code> as steps name it, or what your own policy gives. It stays as it is.",
            "size": "How many run at once. 0: nothing with this key starts.",
        }

    def validate_unique(self) -> None:
        """The verb knows, and says what to do."""
