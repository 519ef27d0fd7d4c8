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
            "key": "Tasks to limit: <code>global</code>, <code>pool:default</code>, <code>type:sql</code>, "
            "<code>resource:…</code> as named by steps, or a key of your policy. Cannot be changed later.",
            "size": "How many tasks with this key may run at once. With 0, none starts.",
        }

    def validate_unique(self) -> None:
        """Leave this check to the model, whose error says what to do."""
