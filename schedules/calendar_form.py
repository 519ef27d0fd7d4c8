from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from operations.form_errors import VerbForm
from schedules.form_fields import Lines
from schedules.models import SharedCalendar
from schedules.spec import SpecError
from schedules.spec_text import exclusions_from_text, exclusions_to_text

if TYPE_CHECKING:
    CalendarModelForm = forms.ModelForm[SharedCalendar]
else:
    CalendarModelForm = forms.ModelForm


class CalendarForm(VerbForm, CalendarModelForm):
    excluded = Lines(
        rows=6,
        label="Excluded",
        help_text="One exclusion per line: <code>holidays GB ENG</code>, "
        "<code>dates 2026-12-24/2027-01-02</code>, "
        "<code>from 2026-12-01 22:00 until 2026-12-02 04:00</code>, <code>day_of_week: sat,sun</code>; "
        'each line can end with <code>comment: "…"</code>, which is shown when JIM explains why a schedule '
        "did not run. Text after “ #” says what the line means. JIM updates this text automatically.",
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = SharedCalendar
        fields = ("name", "description")
        widgets = {"description": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"})}
        help_texts = {"name": "Schedules refer to the calendar by this name, which cannot be changed later."}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        text = exclusions_to_text(self.instance.excluded) if self.instance.pk else ""
        self.initial = {**self.initial, "excluded": text, "version": self.instance.token}
        if isinstance(lines := self.fields.get("excluded"), Lines):
            lines.grow(str(self["excluded"].value() or ""))

    def clean_excluded(self) -> list[object]:
        try:
            return exclusions_from_text(self.cleaned_data["excluded"])
        except SpecError as error:
            raise ValidationError(error.message) from None
