"""The editor's form for the fields of the schedule itself, without its rules and steps."""

from __future__ import annotations

from typing import Any

from django import forms

from schedules.forms.schedule import DST_CHOICES, DURATIONS, ScheduleFields
from schedules.models import Overlap

NEW_ONLY = ("paused", "note", "run_at_once")


class DefinitionForm(ScheduleFields):
    use_required_attribute = False

    class Meta(ScheduleFields.Meta):
        widgets = {
            "description": forms.Textarea(attrs={"rows": 2}),
            "overlap": forms.RadioSelect(choices=Overlap.choices),
            "on_failure": forms.RadioSelect,
            **{name: forms.TextInput(attrs={"autocomplete": "off"}) for name in DURATIONS},
        }
        labels = ScheduleFields.Meta.labels | {
            "overlap": "If a run is still in progress when the next one is due"
        }
        help_texts = {"name": "Identifies the schedule in lists. You can change the name later."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["dst"].widget = forms.RadioSelect(choices=DST_CHOICES)
        if self.instance.pk:
            for name in NEW_ONLY:
                del self.fields[name]
