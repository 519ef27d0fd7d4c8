"""What a schedule has beside its rules and steps: its name, the bounds of its times, its policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms

from operations.form_errors import VerbForm
from schedules import registry
from schedules.form_fields import Memo, Tags
from schedules.forms import DST_LABELS, DURATIONS
from schedules.forms import ScheduleForm as AdminForm
from schedules.models import Overlap, Schedule
from schedules.spec import DST_MODES
from schedules.spec_text import to_text

from .draft import Texts, as_text
from .fields import hidden, line

if TYPE_CHECKING:
    ScheduleModelForm = forms.ModelForm[Schedule]
else:
    ScheduleModelForm = forms.ModelForm

BOUNDS = ("time_zone", "start_at", "end_at", "jitter", "dst")
NEW_ONLY = ("paused", "note", "run_at_once")
BOUND_HELP = "On the clock of the time zone."


class DefinitionForm(VerbForm, ScheduleModelForm):
    use_required_attribute = False
    tags = Tags(required=False, help_text="With commas between them.")
    memo = Memo(required=False, help_text="One per line, such as “owner: Ada”.")
    topics = Tags(
        label="On events of",
        required=False,
        help_text="Topics, with commas between them: each of their events starts it.",
    )
    time_zone = line(
        "Time zone", help="A place, such as Europe/London; UTC if empty.", example="UTC", list="time-zones"
    )
    start_at = line("Not before", help=BOUND_HELP, example="2026-12-01 or 2026-12-01 09:00")
    end_at = line("Not after", help=BOUND_HELP, example="2027-03-31 or 2027-03-31 18:00")
    jitter = line("Jitter", help="Each time starts up to this much later, always by the same.", example="5m")
    dst = forms.ChoiceField(
        label="When clocks change",
        choices=[(mode, DST_LABELS[mode]) for mode in DST_MODES],
        widget=forms.RadioSelect,
    )
    remaining_was = hidden()
    paused = forms.BooleanField(
        label="Start paused", required=False, help_text="It then runs only by hand until it is resumed."
    )
    note = line("Why it is paused", code=False)
    run_at_once = forms.BooleanField(
        label="First run at once",
        required=False,
        help_text="As soon as it is saved, also if it starts paused.",
    )

    class Meta(AdminForm.Meta):
        widgets = {
            "description": forms.Textarea(attrs={"rows": 2}),
            "overlap": forms.RadioSelect(choices=Overlap.choices),
            "on_failure": forms.RadioSelect,
            **{name: forms.TextInput(attrs={"autocomplete": "off"}) for name in DURATIONS},
        }
        labels = AdminForm.Meta.labels | {"overlap": "If one still runs when the next is due"}
        help_texts = {"name": "What people look for; it can be changed later."}

    def __init__(self, texts: Texts, *, schedule: Schedule | None) -> None:
        copy = Schedule(pk=schedule.pk, status=schedule.status) if schedule else Schedule()
        super().__init__(texts, instance=copy)
        widget = self.fields["on_failure"].widget
        assert isinstance(widget, forms.RadioSelect)
        widget.choices = _policies(texts.get("on_failure", ""))
        if schedule is not None:
            for name in NEW_ONLY:
                del self.fields[name]

    @property
    def definition(self) -> dict[str, Any]:
        """What was typed, without the spec; what moves by itself only if somebody changed it."""
        moved = self.data.get("remaining", "") != self.data.get("remaining_was", "")
        names = [name for name in Schedule.EDITABLE if name in self.cleaned_data]
        return {name: self.cleaned_data[name] for name in names if name != "remaining" or moved}


def own_texts(schedule: Schedule) -> Texts:
    """Of a stored schedule, or of one that is still empty."""
    names = (name for name in Schedule.EDITABLE if name in DefinitionForm.base_fields)
    fields = DefinitionForm.base_fields
    texts = {name: as_text(fields[name].prepare_value(getattr(schedule, name))) for name in names}
    spec = to_text(schedule.spec, schedule.calendars)
    bounds = {name: spec[name] for name in BOUNDS}
    given = {name: text for name, text in texts.items() if text}
    return given | bounds | {"remaining_was": texts["remaining"]}


def _policies(current: str) -> list[tuple[str, str]]:
    known = list(registry.failure_policies.items())
    missing = (
        []
        if not current or current in registry.failure_policies
        else [(current, f"{current} (not installed)")]
    )
    return known + missing
