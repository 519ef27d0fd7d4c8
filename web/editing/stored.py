"""The data of the editor's forms for a stored schedule, for a copy, or for a new schedule."""

from __future__ import annotations

from django.http import QueryDict
from django.utils import timezone

from schedules.forms.sent import data_of, put
from schedules.forms.spec_items import EXCLUDE, RULES
from schedules.forms.times import BOUNDS, CLOCK, exclusions_data, rules_data
from schedules.models import Schedule
from schedules.revisions import records_of

from .data import take
from .definition import DefinitionForm
from .steps import PREFIX, data_of_steps

# The name of the field that keeps the number of runs left when the form was opened.
REMAINING = "initial-remaining"


def data_of_schedule(schedule: Schedule) -> QueryDict:
    """Return the data of a stored schedule. `token` and `seen` serve to detect changes by others."""
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
    """Return the data of a new schedule in the user's time zone."""
    data = _own_data(Schedule())
    data["time_zone"] = timezone.get_current_timezone_name()
    return data


def take_theirs(data: QueryDict, part: str, schedule: Schedule) -> None:
    """Replace one part of the data with the stored version, and keep the rest as typed."""
    theirs = data_of_schedule(schedule)
    if part == "steps":
        take(data, f"{PREFIX}-", theirs)
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
