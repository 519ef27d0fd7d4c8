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
            "key": "Which tasks to limit: <code>global</code>, <code>pool:default</code>, "
            "<code>type:sql</code>, <code>resource:…</code> with a resource that steps name, or a key of "
            "your own policy. Cannot be changed later.",
            "size": "How many tasks with this key can run at once. If 0, none start.",
        }

    def validate_unique(self) -> None:
        """Check nothing: `Limit.objects.define` refuses a duplicate key, and says what to do instead."""
