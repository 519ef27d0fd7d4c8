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
            "key": "Which tasks to limit: <code>global</code> (all tasks), <code>pool:default</code>, "
            "<code>type:sql</code>, <code>resource:…</code> with the name of a resource that steps use, or a "
            "key from your own concurrency policy. The key cannot be changed later.",
            "size": "How many tasks with this key can run at once. If 0, no tasks with this key start.",
        }

    def validate_unique(self) -> None:
        """Check nothing here: `Limit.objects.define` refuses a duplicate key and says what to do instead."""
