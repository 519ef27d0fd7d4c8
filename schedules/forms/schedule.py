"""The form of a schedule: its name, its times and its policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings

from database import clock
from operations.field_errors import FieldError
from operations.form_errors import VerbForm
from schedules import registry
from schedules.form_fields import Lines, Memo, Seconds, Tags
from schedules.models import Schedule, SharedCalendar
from schedules.spec import DST_MODES, Spec, SpecError
from schedules.spec_text import FIELDS, from_text, to_text

from .spec_items import line

if TYPE_CHECKING:
    ScheduleModelForm = forms.ModelForm[Schedule]
else:
    ScheduleModelForm = forms.ModelForm

DURATIONS = {
    "catch_up_seconds": "Catch-up window",
    "timeout_seconds": "Timeout",
    "deadline_seconds": "Deadline",
}
BOUND_HELP = "A date, or a date and time, in the schedule's time zone."
DST_LABELS = {
    "cron": "As in cron: if the clocks skip a fixed time, run after the gap; if they repeat it, run once",
    "literal": "Literally: if the clocks skip a time, do not run; if they repeat it, run twice",
}

DST_CHOICES = [(mode, DST_LABELS[mode]) for mode in DST_MODES]


class ScheduleFields(VerbForm, ScheduleModelForm):
    """The fields of a schedule, except rules, exclusions and steps, which pages and the admin add."""

    tags = Tags(required=False, help_text="Separated by commas. Schedules can be filtered by tag.")
    memo = Memo(required=False, help_text="One entry per line, such as “owner: Ada”.")
    topics = Tags(
        label="On events of",
        required=False,
        help_text="Topics, separated by commas. Each event in one of these topics starts a run. The steps of "
        "the run can use {{ event.payload }}.",
    )
    time_zone = line(
        "Time zone",
        help="A time zone name, such as Europe/London. If empty, UTC is used.",
        example="UTC",
        code=False,
        max_length=100,
        list="time-zones",
    )
    start_at = line("Not before", help=BOUND_HELP, example="2026-12-01 or 2026-12-01 09:00", max_length=100)
    end_at = line("Not after", help=BOUND_HELP, example="2027-03-31 or 2027-03-31 18:00", max_length=100)
    jitter = line(
        "Jitter",
        help="Delays each run by up to this duration, to spread the load. The delay varies from run to "
        "run, but a given scheduled time always has the same delay.",
        example="5m",
        max_length=100,
    )
    dst = forms.ChoiceField(label="When clocks change", choices=DST_CHOICES)
    paused = forms.BooleanField(
        label="Start paused",
        required=False,
        help_text="While the schedule is paused, it runs only when it is started manually.",
    )
    note = line("Pause note", code=False, max_length=1000)
    run_at_once = forms.BooleanField(
        label="Run once immediately",
        required=False,
        help_text="Starts a run as soon as the schedule is saved, even if the schedule is saved as paused.",
    )

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
        shown = to_text(self.instance.spec, self.instance.calendars)
        self.initial = {**{_field_of(name): text for name, text in shown.items()}, **self.initial}
        if "on_failure" in self.fields:
            _offer(self, "on_failure", list(registry.failure_policies.items()))
        if "remaining" in self.fields:
            # Runs reduce the number of runs left while the form is open. The form sends back the number that
            # it showed, so that an edit can be detected.
            self.fields["remaining"].show_hidden_initial = True

    @property
    def definition(self) -> dict[str, Any]:
        """Return the entered values of the fields in `Schedule.EDITABLE`.

        For an existing schedule, `remaining` is left out unless it was edited.
        """
        names = set(Schedule.EDITABLE) & self.cleaned_data.keys()
        if self.instance.pk and "remaining" not in self.changed_data:
            names -= {"remaining"}
        return {name: self.cleaned_data[name] for name in Schedule.EDITABLE if name in names}


class ScheduleForm(ScheduleFields):
    """The schedule form of the admin, in which rules and exclusions are typed as lines of text."""

    patterns = Lines(
        rows=3,
        help_text="One rule per line: <code>at 09:00, 12:30 on mon-fri</code>, or "
        "<code>every 25m from 09:00 until 17:30 on mon,wed</code>. A line without weekdays "
        "applies to every day. Text after “ #” says what the line means. JIM updates this text "
        "automatically.",
    )
    cron = Lines(
        rows=3,
        help_text="One expression per line: minute, hour, day of month, month, day of week, such as "
        "<code>0 3 * * mon-fri</code>. A sixth field is the year. If there are seven fields, the first "
        "one is for seconds. Or use @hourly, @daily, @weekly, @monthly, @yearly, "
        "<code>@every 90m/5m</code>.",
    )
    every = Lines(
        help_text="One interval per line, such as <code>90s</code>, <code>15m</code>, <code>1h30m</code>; "
        "<code>1h offset 5m</code> means five minutes past every hour.",
    )
    at = Lines(
        label="Once, at",
        help_text="One time per line, in the schedule's time zone, such as <code>2026-12-01 09:00</code>, "
        "or with a UTC offset: <code>2026-12-01T09:00:00Z</code>.",
    )
    exclude = Lines(
        rows=3,
        label="Except",
        help_text="One exclusion per line: <code>calendar UK holidays</code> (a shared calendar), "
        "<code>holidays GB ENG</code>, <code>dates 2026-12-24/2027-01-02</code>, "
        "<code>from 2026-12-01 22:00 until 2026-12-02 04:00</code>, <code>day_of_week: sat,sun</code>.",
    )
    structured = Lines(
        label="Calendars",
        help_text="One rule per line, with named fields: <code>hour: 9-17, minute: 0,30, day_of_month: 1-7, "
        "day_of_week: mon</code>. The fields second, minute and hour are 0 if left out; day_of_month, month, "
        "year and day_of_week then match any value. Unlike in cron, a day must match both day_of_month and "
        'day_of_week. A line can end with <code>comment: "…"</code>, which is stored with the rule.',
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial = {"version": self.instance.token, **self.initial}
        for name, field in self.fields.items():
            if isinstance(field, Lines):
                field.grow(str(self[name].value() or ""))

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
    """Offer the registered choices in a form field, and its current choice even if that is not registered."""
    current = form[name].value()
    if current and current not in dict(choices):
        choices = [*choices, (current, f"{current} (not installed)")]
    form.fields[name].widget.choices = choices


def _field_of(name: str) -> str:
    """Return the name of the form field for a part of the spec.

    The field for `calendars` has another name, because the model already has a field `calendars`.
    """
    return "structured" if name == "calendars" else name
