"""The data of the schedule editor's forms as a browser sends it: unparsed text, so that no input is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.forms import inlineformset_factory
from django.http import QueryDict
from django.utils import timezone

from files import strict_json
from schedules.forms.schedule import DST_CHOICES, DURATIONS, ScheduleFields
from schedules.forms.sent import Sent, data_of, put
from schedules.forms.spec_items import EXCLUDE, RULES
from schedules.forms.steps import StepForm, StepFormSet
from schedules.forms.times import BOUNDS, CLOCK, exclusions_data, rules_data
from schedules.models import MAX_STEPS, Overlap, Schedule, Step
from schedules.revisions import records_of
from text.clean import clean_lines
from text.numbers import whole_number

NEW_ONLY = ("paused", "note", "run_at_once")
STEPS = "steps"
# This limit includes the forms of removed steps, which stay in the data.
MOST_STEP_FORMS = 2 * MAX_STEPS
# In a plan with more steps than this, all steps are folded, and the user opens them one by one.
MOST_OPEN = 4
# The name of the hidden field with the number of remaining runs at the time when the form was opened.
REMAINING = "initial-remaining"


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


def cleaned(post: QueryDict) -> QueryDict:
    """Return a mutable copy of the sent data, without characters that the database cannot store."""
    data = QueryDict(mutable=True)
    for name, texts in post.lists():
        data.setlist(name, [clean_lines(str(text)) for text in texts])
    return data


def count_of(data: QueryDict, prefix: str) -> int:
    """Return the number of forms in the formset with this prefix, including removed forms."""
    return whole_number(data.get(f"{prefix}-TOTAL_FORMS", ""), digits=4) or 0


def put_count(data: QueryDict, prefix: str, count: int) -> None:
    put(data, {f"{prefix}-TOTAL_FORMS": [str(count)], f"{prefix}-INITIAL_FORMS": ["0"]})


def added(data: QueryDict, prefix: str, *, most: int) -> int | None:
    """Add a form and return its number, or return None if the formset already has `most` forms."""
    number = count_of(data, prefix)
    if number >= most:
        return None
    put_count(data, prefix, number + 1)
    return number


def removed(data: QueryDict, prefix: str, number: int) -> None:
    """Mark a form as removed. The other forms keep their numbers, so that their input stays in place."""
    take(data, f"{prefix}-{number}-", QueryDict())
    data[f"{prefix}-{number}-DELETE"] = "on"


def take(data: QueryDict, start: str, source: QueryDict) -> None:
    """Remove the fields of `data` whose names begin with `start`, and copy such fields from `source`."""
    for name in [name for name in data if name.startswith(start)]:
        del data[name]
    put(data, {name: source.getlist(name) for name in source if name.startswith(start)})


class FoldableStepForm(StepForm):
    can_be_folded = True


Steps = inlineformset_factory(
    Schedule,
    Step,
    form=FoldableStepForm,
    formset=StepFormSet,
    max_num=MAX_STEPS,
    absolute_max=MOST_STEP_FORMS,
)


def data_of_steps(steps: Iterable[Mapping[str, Any]]) -> Sent:
    """Return the formset data of these steps. Each step is folded, which means that it is stored as JSON."""
    data: Sent = {}
    for number, step in enumerate(steps):
        rest = {name: value for name, value in step.items() if name != "index"}
        data[_index(number)] = [str(step.get("index", 0))]
        data[f"{STEPS}-{number}-folded"] = [json.dumps(rest)]
    return data | {f"{STEPS}-TOTAL_FORMS": [str(len(data) // 2)]}


def formset_of(data: QueryDict, schedule: Schedule | None, *, tells_secrets: bool) -> Any:
    """Return the validated formset, with some of its folded steps unfolded.

    Steps that the user opened and steps with errors are unfolded. In a short plan, all steps are unfolded.
    `tells_secrets` says whether errors may name the secrets that exist.
    """
    formset = _checked(data, schedule, tells_secrets=tells_secrets)
    is_short = len(formset.step_forms) <= MOST_OPEN
    folded = [form for form in formset.step_forms if form.is_folded]
    to_open = [form for form in folded if is_short or form.errors or data.get(f"{form.prefix}-open")]
    for form in to_open:
        data.pop(f"{form.prefix}-folded", None)
        put(data, form.unfolded())
    return _checked(data, schedule, tells_secrets=tells_secrets) if to_open else formset


def _checked(data: QueryDict, schedule: Schedule | None, *, tells_secrets: bool) -> Any:
    put_count(data, STEPS, min(count_of(data, STEPS), MOST_STEP_FORMS))
    instance = schedule or Schedule()
    formset: Any = Steps(data=data, instance=instance, prefix=STEPS, form_kwargs={"empty_permitted": False})
    formset.tells_secrets = tells_secrets
    formset.is_valid()
    return formset


def indices_of(data: QueryDict) -> dict[int, int]:
    """Return a dict from the number of each step's form to the step's index; leave out removed steps."""
    count = min(count_of(data, STEPS), MOST_STEP_FORMS)
    numbers = [number for number in range(count) if not data.get(f"{STEPS}-{number}-DELETE")]
    return {number: whole_number(data.get(_index(number), ""), digits=9) or 0 for number in numbers}


def put_indices(data: QueryDict, indices: Mapping[int, int]) -> None:
    put(data, {_index(number): [str(index)] for number, index in indices.items()})


def read_folded(text: str) -> dict[str, Any]:
    try:
        step = strict_json.loads(text)
    except ValueError:
        return {}
    return step if isinstance(step, dict) else {}


def _index(number: int) -> str:
    return f"{STEPS}-{number}-index"


def data_of_schedule(schedule: Schedule) -> QueryDict:
    """Return the form data of a stored schedule.

    The fields `token` and `seen` are used to detect changes that other users make while the form is open.
    """
    data = _own_data(schedule)
    data["token"], data["seen"] = str(schedule.token), str(newest_record(schedule))
    put(data, rules_data(schedule.spec, schedule.calendars))
    put(data, exclusions_data(schedule.spec))
    put(data, data_of_steps(step.written() for step in schedule.steps.all()))
    return data


def data_of_copy(schedule: Schedule) -> QueryDict:
    data = data_of_schedule(schedule)
    del data["token"], data["seen"]
    data[REMAINING] = ""
    data["name"] = f"Copy of {schedule.name}"[:200]
    return data


def data_of_new() -> QueryDict:
    """Return the form data of a new schedule in the user's time zone."""
    data = _own_data(Schedule())
    data["time_zone"] = timezone.get_current_timezone_name()
    return data


def take_theirs(data: QueryDict, part: str, schedule: Schedule) -> None:
    """Replace one part of the form data with the version in the database, and keep the rest as typed."""
    theirs = data_of_schedule(schedule)
    if part == "steps":
        take(data, f"{STEPS}-", theirs)
    elif part == "spec":
        take(data, f"{RULES}-", theirs)
        take(data, f"{EXCLUDE}-", theirs)
        put(data, {name: theirs.getlist(name) for name in (*CLOCK, *BOUNDS)})
    elif part in Schedule.EDITABLE:
        names = (part, REMAINING) if part == "remaining" else (part,)
        put(data, {name: theirs.getlist(name) for name in names})


def _own_data(schedule: Schedule) -> QueryDict:
    data = QueryDict(mutable=True)
    put(data, data_of(DefinitionForm(instance=schedule)))
    return data


def newest_record(schedule: Schedule) -> int:
    return records_of(schedule).order_by("-pk").values_list("pk", flat=True).first() or 0
