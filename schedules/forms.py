from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.utils.text import capfirst

from activities import clock, strict_json

from . import registry
from .models import Schedule, Step
from .spec import DST_MODES, Spec
from .spec_text import FIELDS, from_text, to_text
from .wording import SpecError

if TYPE_CHECKING:
    ScheduleModelForm = forms.ModelForm[Schedule]
    StepModelForm = forms.ModelForm[Step]
    StepInlineFormSet = forms.BaseInlineFormSet[Step, Schedule, forms.ModelForm[Step]]
else:
    ScheduleModelForm = StepModelForm = forms.ModelForm
    StepInlineFormSet = forms.BaseInlineFormSet

DST_LABELS = {
    "cron": "As cron does: a fixed time in the gap moves to its end, one in the fold happens once",
    "literal": "Literally: a time in the gap is left out, one in the fold happens twice",
}


class Unsaved(Exception):
    """What the model said when the forms had nothing left to say: shown on the same page, by field."""

    def __init__(self, errors: dict[str, list[str]]) -> None:
        self.steps = errors.pop("steps", [])
        self.fields = errors
        super().__init__(errors)


class OneComplaint:
    """What the form says about a field hides what the model would add to it."""

    def add_error(self, field: str | None, error: Any) -> None:
        known: dict[str, Any] = self.errors  # type: ignore[attr-defined]
        if field is None and hasattr(error, "error_dict"):
            fresh = {name: each for name, each in error.error_dict.items() if name not in known}
            if fresh:
                super().add_error(None, ValidationError(fresh))  # type: ignore[misc]
        else:
            super().add_error(field, error)  # type: ignore[misc]


class ScheduleForm(OneComplaint, ScheduleModelForm):
    cron = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField code", "spellcheck": "false"}),
        help_text="One expression per line: minute, hour, day of month, month, day of week, such as "
        "<code>0 3 * * mon-fri</code>; or @hourly, @daily, @weekly, @monthly, @yearly. "
        "What follows “ #” is a comment: it is written anew each time, and says what the line means.",
    )
    every = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField code", "spellcheck": "false"}),
        help_text="One interval per line, such as <code>90s</code>, <code>15m</code>, <code>1h30m</code>; "
        "<code>1h offset 5m</code> means five minutes past every hour.",
    )
    at = forms.CharField(
        label="Once, at",
        required=False,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField code", "spellcheck": "false"}),
        help_text="One time per line, on the clock of the time zone, such as <code>2026-12-01 09:00</code>, "
        "or with an offset of its own: <code>2026-12-01T09:00:00Z</code>.",
    )
    time_zone = forms.CharField(
        required=False,
        max_length=100,
        widget=forms.TextInput(attrs={"list": "time-zones", "class": "vTextField"}),
        help_text="A place, such as Europe/London; UTC if empty.",
    )
    dst = forms.ChoiceField(
        label="When clocks change", choices=[(mode, DST_LABELS[mode]) for mode in DST_MODES]
    )
    paused = forms.BooleanField(
        label="Start paused", required=False, help_text="It then runs only by hand until it is resumed."
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    unsaved = Unsaved({})

    class Meta:
        model = Schedule
        fields = ("name", "description", "overlap", "catch_up_seconds")
        widgets = {"description": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial = {**to_text(self.instance.spec), "version": self.instance.token, **self.initial}

    @property
    def definition(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in Schedule.EDITABLE if name in self.cleaned_data}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not any(name in self.errors for name in FIELDS):
            self._clean_spec(cleaned)
        if self.instance.pk and cleaned.get("version") is None:
            self.add_error(None, "This form does not say which version it changes: load the page again.")
        for name, texts in self.unsaved.fields.items():
            # The one rule that is about the whole schedule is about its name.
            field = "name" if name == NON_FIELD_ERRORS else name if name in self.fields else None
            self.add_error(field, texts)
        return cleaned

    def _clean_spec(self, cleaned: dict[str, Any]) -> None:
        try:
            spec = Spec.parse(from_text(cleaned))
            if not self.instance.pk or spec.as_json() != self.instance.spec:
                spec.check(clock.now())
        except SpecError as error:
            self.add_error(error.field or None, error.message)
        else:
            cleaned["spec"] = spec.as_json()


class JSONText(forms.CharField):
    """An object of settings, shown as it was typed until it is right."""

    widget = forms.Textarea(attrs={"rows": 6, "class": "vLargeTextField code", "spellcheck": "false"})

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return strict_json.loads(value) if value.strip() else {}
        except ValueError as error:
            raise ValidationError(f"{capfirst(str(error))}.") from None

    def run_validators(self, value: Any) -> None:
        """A CharField's are about text."""


class StepForm(OneComplaint, StepModelForm):
    config = JSONText(
        required=False, initial=dict, help_text="JSON; the settings of each type are listed above the steps."
    )

    class Meta:
        model = Step
        fields = Step.FIELDS
        widgets = {"step_type": forms.Select}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices = [("", "choose…"), *registry.choices()]
        current = self["step_type"].value()
        if current and current not in registry.step_types:
            choices.append((current, f"{current} (not installed)"))
        self.fields["step_type"].widget.choices = choices
        config = self.fields["config"].prepare_value(self["config"].value())
        self.fields["config"].widget.attrs["rows"] = min(max(config.count("\n") + 1, 4), 20)

    def validate_unique(self) -> None:
        """The steps in the database are the ones that these replace."""

    def validate_constraints(self) -> None:
        """Likewise."""


class StepFormSet(StepInlineFormSet):
    """The steps as a list that replaces the old one as a whole: its rows are no rows of the database."""

    complaints: Sequence[str] = ()

    def __init__(self, **kwargs: Any) -> None:
        schedule: Schedule = kwargs["instance"]
        if schedule.pk and kwargs.get("data") is None:
            kwargs["initial"] = [step.as_json() for step in schedule.steps.all()]
        kwargs["queryset"] = Step.objects.none()
        super().__init__(**kwargs)
        self.extra = len(kwargs.get("initial", ())) or 1

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [
            form.instance.as_json() for form in self.forms if form.has_changed() and not self._removed(form)
        ]

    def clean(self) -> None:
        if self.complaints:
            raise ValidationError(list(self.complaints))

    def _removed(self, form: forms.ModelForm[Step]) -> bool:
        return bool(form.cleaned_data.get("DELETE"))
