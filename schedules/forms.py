from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower
from django.utils.functional import cached_property

from database import clock
from operations.field_errors import FieldError
from operations.form_errors import VerbForm

from . import registry
from .form_fields import AsShown, JSONText, Lines, Memo, Seconds, Tags, Words
from .models import Schedule, SharedCalendar, Step, TaskTemplate
from .models.template import same_json
from .spec import DST_MODES, Spec, SpecError
from .spec_text import FIELDS, from_text, to_text

if TYPE_CHECKING:
    ScheduleModelForm = forms.ModelForm[Schedule]
    AnyModelForm = forms.ModelForm[Any]
    StepInlineFormSet = forms.BaseInlineFormSet[Step, Schedule, forms.ModelForm[Step]]
else:
    ScheduleModelForm = AnyModelForm = forms.ModelForm
    StepInlineFormSet = forms.BaseInlineFormSet

# What a template may say of a step, and what else follows from its place.
TEMPLATED = tuple(name for name in Step.FIELDS if name not in ("index", "name"))
DURATIONS = {
    "catch_up_seconds": "Catch-up window",
    "timeout_seconds": "Timeout",
    "deadline_seconds": "Deadline",
}
BOUND_HELP = (
    "Its {}, on the clock of the time zone: <code>2026-12-01</code> or <code>2026-12-01 09:00</code>."
)
LINE: dict[str, Any] = {
    "required": False,
    "max_length": 100,
    "widget": forms.TextInput(attrs={"class": "vTextField code", "spellcheck": "false"}),
}
DST_LABELS = {
    "cron": "As cron does: a fixed time in the gap moves to its end, one in the fold happens once",
    "literal": "Literally: a time in the gap is left out, one in the fold happens twice",
}


class ScheduleForm(VerbForm, ScheduleModelForm):
    patterns = Lines(
        rows=3,
        help_text="One per line: <code>at 09:00, 12:30 on mon-fri</code>, or "
        "<code>every 25m from 09:00 until 17:30 on mon,wed</code>. Without weekdays: every day. "
        "What follows “ #” is a comment: it is written anew each time, and says what the line means.",
    )
    cron = Lines(
        rows=3,
        help_text="One expression per line: minute, hour, day of month, month, day of week, such as "
        "<code>0 3 * * mon-fri</code>; a sixth field is the year, with seven the first is the second. "
        "Or @hourly, @daily, @weekly, @monthly, @yearly, <code>@every 90m/5m</code>.",
    )
    every = Lines(
        help_text="One interval per line, such as <code>90s</code>, <code>15m</code>, <code>1h30m</code>; "
        "<code>1h offset 5m</code> means five minutes past every hour.",
    )
    at = Lines(
        label="Once, at",
        help_text="One time per line, on the clock of the time zone, such as <code>2026-12-01 09:00</code>, "
        "or with an offset of its own: <code>2026-12-01T09:00:00Z</code>.",
    )
    time_zone = forms.CharField(
        required=False,
        max_length=100,
        widget=forms.TextInput(attrs={"list": "time-zones", "class": "vTextField"}),
        help_text="A place, such as Europe/London; UTC if empty.",
    )
    exclude = Lines(
        rows=3,
        label="Except",
        help_text="One per line: <code>calendar UK holidays</code> (a shared calendar), "
        "<code>holidays GB ENG</code>, <code>dates 2026-12-24/2027-01-02</code>, "
        "<code>from 2026-12-01 22:00 until 2026-12-02 04:00</code>, <code>day_of_week: sat,sun</code>.",
    )
    start_at = forms.CharField(label="Not before", help_text=BOUND_HELP.format("start"), **LINE)
    end_at = forms.CharField(label="Not after", help_text=BOUND_HELP.format("end"), **LINE)
    structured = Lines(
        label="Calendars",
        help_text="One per line, each field by its name: <code>hour: 9-17, minute: 0,30, day_of_month: 1-7, "
        "day_of_week: mon</code>. Fields: second, minute, hour (0 if not named), day_of_month, month, year, "
        "day_of_week (any). Unlike in cron, both day fields have to match. "
        'A <code>comment: "…"</code> at the end stays.',
    )
    jitter = forms.CharField(
        help_text="Each time starts up to this much later, always by the same: <code>5m</code> spreads load.",
        **LINE,
    )
    dst = forms.ChoiceField(
        label="When clocks change", choices=[(mode, DST_LABELS[mode]) for mode in DST_MODES]
    )
    tags = Tags(required=False, help_text="Words with commas between them; the list can be filtered by them.")
    memo = Memo(
        required=False,
        help_text="One per line, such as <code>owner: Ada</code>; the list can be filtered by them.",
    )
    topics = Tags(
        label="On events of",
        required=False,
        help_text="Topics, with commas between them: each of their events starts it. Its steps can use "
        "<code>{{ event.payload }}</code>.",
    )
    paused = forms.BooleanField(
        label="Start paused", required=False, help_text="It then runs only by hand until it is resumed."
    )
    note = forms.CharField(
        label="Why it is paused",
        required=False,
        max_length=1000,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    run_at_once = forms.BooleanField(
        label="First run at once",
        required=False,
        help_text="As soon as it is saved, also if it starts paused.",
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta:
        model = Schedule
        fields = (
            "name",
            "description",
            "tags",
            "memo",
            "topics",
            "overlap",
            *DURATIONS,
            "on_failure",
            "pause_on_failure",
            "failures_to_pause",
            "failures_among",
            "remaining",
        )
        labels = DURATIONS | {"failures_to_pause": "Failures", "failures_among": "Among the last"}
        field_classes = dict.fromkeys(DURATIONS, Seconds)
        widgets = {
            "description": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
            "on_failure": forms.Select,
            **{name: forms.TextInput(attrs={"size": 12}) for name in DURATIONS},
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shown = {_field_of(name): text for name, text in self._spec_text.items()}
        self.initial = {**shown, "version": self.instance.token, **self.initial}
        for name, field in self.fields.items():
            if isinstance(field, Lines):
                field.grow(str(self[name].value() or ""))
        if "on_failure" in self.fields:
            _offer(self, "on_failure", list(registry.failure_policies.items()))
        if "remaining" in self.fields:
            # It moves by itself, so what was shown has to come back to tell whether somebody changed it.
            self.fields["remaining"].show_hidden_initial = True

    @property
    def _spec_text(self) -> dict[str, str]:
        return to_text(self.instance.spec, self.instance.calendars)

    @property
    def definition(self) -> dict[str, Any]:
        """What was typed, of `Schedule.EDITABLE`."""
        names = set(Schedule.EDITABLE) & self.cleaned_data.keys()
        if "remaining" not in self.changed_data:
            names -= {"remaining"}
        return {name: self.cleaned_data[name] for name in Schedule.EDITABLE if name in names}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not any(_field_of(name) in self.errors for name in FIELDS):
            self._clean_spec(cleaned)
        return cleaned

    def placed(self, error: FieldError) -> tuple[str | None, str]:
        match error.path:
            case ("spec", part, *_):
                return super().placed(error._replace(path=(_field_of(str(part)),)))
        return super().placed(error)

    def _clean_spec(self, cleaned: dict[str, Any]) -> None:
        try:
            data = from_text({name: cleaned[_field_of(name)] for name in FIELDS})
            spec = Spec.parse(data, SharedCalendar.objects.needed_by(data))
            if not self.instance.pk or spec.as_json() != self.instance.spec:
                spec.check(clock.now(), minimum_seconds=settings.JIM_MINIMUM_INTERVAL_SECONDS)
        except SpecError as error:
            self.add_error(_field_of(error.field) or None, error.message)
        else:
            cleaned["spec"] = spec.as_json()


def _offer(form: forms.ModelForm[Any], name: str, choices: list[tuple[str, str]]) -> None:
    """What is registered, and what was chosen when something else was; the model says what is wrong."""
    current = form[name].value()
    if current and current not in dict(choices):
        choices = [*choices, (current, f"{current} (not installed)")]
    form.fields[name].widget.choices = choices


def _field_of(name: str) -> str:
    """The form's field for a part of the spec; the model has another use for the name `calendars`."""
    return "structured" if name == "calendars" else name


def _help(name: str) -> str:
    field = Step._meta.get_field(name)
    assert isinstance(field, models.Field)
    return f"One per line. {field.help_text}"


class TaskForm(VerbForm, AnyModelForm):
    """What runs, and how: of a step, and of a template of steps."""

    config = JSONText(
        required=False, initial=dict, help_text="JSON; the settings of each type are listed above."
    )
    retry_on = Words(initial=list, label="Retry only after", help_text=_help("retry_on"))
    resources = Words(initial=list, help_text=_help("resources"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "retry_factor" in self.fields:
            self.fields["retry_factor"].widget.attrs["class"] = "vIntegerField"
        if "step_type" in self.fields:
            _offer(self, "step_type", [("", "choose…"), *registry.choices()])
        for name, field in self.fields.items():
            if isinstance(field, JSONText):
                text = field.prepare_value(self[name].value())
                field.widget.attrs["rows"] = min(max(text.count("\n") + 1, 4), 20)


class StepForm(TaskForm):
    from_template = forms.ChoiceField(
        label="Template",
        required=False,
        help_text="The step is what the template says. What you change in the other fields holds for this "
        "step instead; what you leave as it is follows the template.",
    )
    instead = JSONText(
        label="Instead",
        required=False,
        initial=dict,
        help_text='JSON, by field: <code>{"config": {"url": "…"}, "max_retries": 5}</code>. Settings of the '
        "config that are not named here stay the template's. Take a field out to follow the template again.",
    )
    as_shown = AsShown(initial=lambda: _as_shown(Step()))

    class Meta:
        model = Step
        fields = Step.FIELDS
        widgets = {"step_type": forms.Select}

    def __init__(self, *args: Any, templates: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = self.fields.get("from_template")
        if isinstance(chosen, forms.ChoiceField):
            current = self["from_template"].value() or ""
            others = [] if not current or current in templates else [(current, f"{current} (not active)")]
            chosen.choices = [("", "none"), *((name, name) for name in templates), *others]

    @property
    def written(self) -> dict[str, Any]:
        """The step, as somebody has typed it."""
        if not (template := self.cleaned_data.get("from_template")):
            return dict(self.instance.as_json())
        place = {name: self.cleaned_data[name] for name in ("index", "name")}
        instead, changed = self.cleaned_data["instead"], self._changed
        if isinstance(changed.get("config"), dict):
            changed["config"] = instead.get("config", {}) | changed["config"]
        return {**place, "template": template, **instead, **changed}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if cleaned.get("from_template"):
            for name in [name for name in self.errors if self._was_left(name)]:
                del self.errors[name]
            instead = cleaned.get("instead", {})
            if not isinstance(instead, dict) or not isinstance(instead.get("config", {}), dict):
                self.add_error("instead", "An object is expected: fields of a step, and their values.")
            elif wrong := sorted({"index", "name", "template"} & instead.keys()):
                self.add_error("instead", f"{', '.join(wrong)}: has a field of its own here.")
        return cleaned

    def _was_left(self, name: str) -> bool:
        """As it was when the page was shown; there, a field may hold what no step could be saved with."""
        shown = self.cleaned_data.get("as_shown", {})
        if name not in TEMPLATED:
            return False
        typed = self.data.get(self.add_prefix(name), "").replace("\r\n", "\n")
        return not typed or typed == str(self.fields[name].prepare_value(shown.get(name)) or "")

    @property
    def _changed(self) -> dict[str, Any]:
        """What is not as it was when the page was shown; of the config, only the settings that are not."""
        shown, now = self.cleaned_data["as_shown"], self.cleaned_data
        names = [name for name in TEMPLATED if name in shown and name in now]
        changed = {name: now[name] for name in names if not same_json(now[name], shown[name])}
        new, old = changed.get("config"), shown.get("config")
        if isinstance(new, dict) and isinstance(old, dict):
            names = [name for name in {**old, **new} if not same_json(new.get(name), old.get(name))]
            changed["config"] = {name: new.get(name) for name in names}
        return changed

    def _post_clean(self) -> None:
        """With a template, the model makes the step of it, and says what is wrong."""
        if not self.cleaned_data.get("from_template"):
            super()._post_clean()  # type: ignore[misc]

    def placed(self, error: FieldError) -> tuple[str | None, str]:
        if error.path == ("template",):
            return "from_template", error.message
        return super().placed(error)

    def validate_unique(self) -> None:
        """The steps in the database are the ones that these replace."""


class StepFormSet(StepInlineFormSet):
    """The steps as a list that replaces the old one as a whole: its rows are no rows of the database."""

    complaints: Sequence[FieldError] = ()

    def __init__(self, **kwargs: Any) -> None:
        schedule: Schedule = kwargs["instance"]
        if schedule.pk and kwargs.get("data") is None:
            kwargs["initial"] = [_shown(step) for step in schedule.steps.all()]
        kwargs["queryset"] = Step.objects.none()
        super().__init__(**kwargs)
        self.extra = len(kwargs.get("initial", ())) or 1

    @cached_property
    def templates(self) -> list[str]:
        return list(TaskTemplate.objects.active().order_by(Lower("name")).values_list("name", flat=True))

    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:
        return {**super().get_form_kwargs(index), "templates": self.templates}

    @property
    def written_forms(self) -> list[StepForm]:
        """The forms that stand for a step, in the order of the page."""
        return [
            form
            for form in self.forms
            if isinstance(form, StepForm) and form.has_changed() and not self._removed(form)
        ]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [form.written for form in self.written_forms]

    def clean(self) -> None:
        """Show what the model said about each step beside its fields, and about all of them above."""
        forms = self.written_forms
        whole = []
        for error in self.complaints:
            match error.path:
                case (int(place), *inner) if place < len(forms):
                    form = forms[place]
                    form.add_error(*form.placed(error._replace(path=tuple(inner))))
                case _:
                    whole.append(str(error))
        if whole:
            raise ValidationError(whole)

    def _removed(self, form: forms.ModelForm[Step]) -> bool:
        return bool(form.cleaned_data.get("DELETE"))


def _shown(step: Step) -> dict[str, Any]:
    """As it runs, and what was written to make it so."""
    instead = {name: value for name, value in step.overrides.items() if name != "template"}
    template = {"from_template": step.overrides.get("template", ""), "instead": instead}
    return step.as_json() | template | {"as_shown": _as_shown(step)}


def _as_shown(step: Step) -> str:
    return json.dumps({name: getattr(step, name) for name in TEMPLATED})
