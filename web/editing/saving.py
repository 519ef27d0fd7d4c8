"""Save a valid draft as a schedule, or report an edit conflict: what other people changed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.http import QueryDict

from activities.models import Activity
from operations.initiator import Initiator
from schedules import permissions
from schedules.models import Refused, Schedule, Step
from schedules.models.template import same_json
from schedules.revisions import Change, Revision, compare, records_of
from text.numbers import whole_number

from .data import newest_record, take_theirs
from .reading import Reading

NAME_TAKEN = "This name was just taken by another schedule. Choose another name."
MOST_RECORDS = 20
PARTS = {"spec": "times", "steps": "steps"}
SAID = {
    "pause": "paused the schedule",
    "resume": "resumed the schedule",
    "skip": "skipped a run",
    "unskip": "undid a skip",
}


def save(reading: Reading, *, user: Any, initiator: Initiator, now: datetime) -> Schedule | None:
    """Save the draft and return the schedule, or add errors to `reading` and return None.

    Raise Conflict if the stored schedule has changed since the form was opened.
    """
    schedule = reading.schedule
    try:
        if schedule is None:
            return _define(reading, user=user, initiator=initiator, now=now)
        schedule.edit(
            token=number_of(reading.data.get("token", "")),
            changes=reading.definition,
            steps=reading.steps,
            may=user.has_perm,
            initiator=initiator,
            now=now,
        )
    except Refused as refused:
        reading.complain("", str(refused))
    except ValidationError as error:
        reading.refuse(error)
    except IntegrityError:
        reading.complain("name", NAME_TAKEN)
    return schedule if reading.is_right else None


def _define(reading: Reading, *, user: Any, initiator: Initiator, now: datetime) -> Schedule:
    first = reading.form.cleaned_data
    return Schedule.objects.define(
        **reading.definition,
        steps=reading.steps,
        paused=first["paused"],
        note=first["note"],
        run_at_once=first["run_at_once"] and user.has_perm(permissions.RUN),
        may=user.has_perm,
        initiator=initiator,
        now=now,
    )


def typed(reading: Reading) -> dict[str, Any]:
    """Return the definition as the model would store it, without the steps."""
    checked = Schedule(**reading.definition)
    checked.clean()
    return {name: getattr(checked, name) for name in reading.definition}


def as_written(reading: Reading) -> list[dict[str, Any]]:
    """Return the steps as the model would store them."""
    steps = [Step.read(data, reading.templates) for data in reading.steps]
    for step in steps:
        step.errors()  # also completes the config
    return [step.written() for step in steps]


def number_of(text: str) -> int:
    return whole_number(text) or 0


@dataclass(frozen=True)
class EditConflict:
    """What other users changed while the form was open, and what saving the form would change."""

    revisions: list[Revision]
    others: list[tuple[Activity, str]]
    taken: list[str]
    changes: list[tuple[str, str, list[Change]]]


def reconciled(reading: Reading, *, token: int) -> QueryDict:
    """Return the form's data, but with the saved value of each part that only other users have changed.

    `token` is the version of the schedule that is saved now.
    """
    schedule = reading.schedule
    assert schedule is not None
    taken = untouched(reading)
    data = reading.data.copy()
    for part in taken:
        take_theirs(data, part, schedule)
    known = data.get("taken", "").split()
    data["taken"] = " ".join(dict.fromkeys([*known, *taken]))
    data["token"], data["conflict"] = str(token), "yes"
    data["base"] = str(newest_record(schedule))
    return data


def untouched(reading: Reading) -> list[str]:
    """Return the names of the parts that other users changed while this user did not."""
    schedule, data = reading.schedule, reading.data
    assert schedule is not None
    base = _definition_at(schedule, number_of(data.get("base") or data.get("seen", "")))
    if base is None:
        return []
    theirs = schedule.definition()
    mine = typed(reading) | {"steps": as_written(reading)}
    return [
        name
        for name, value in theirs.items()
        if name in mine and same_json(mine[name], base.get(name)) and not same_json(value, base.get(name))
    ]


def _definition_at(schedule: Schedule, record: int) -> dict[str, Any] | None:
    """Return the definition as it was when the audit record with the id `record` was made, or None.

    Return None if the schedule has not been edited since then, or has been edited too often to look back.
    """
    revisions = schedule.revisions()
    since = len(revisions.since(record, most=MOST_RECORDS))
    return revisions[since].definition if 0 < since < min(len(revisions), MOST_RECORDS) else None


def conflict_of(reading: Reading) -> EditConflict | None:
    """Return the conflict, or None if the schedule has not changed since the form was opened."""
    schedule, data = reading.schedule, reading.data
    if schedule is None or (data.get("token") == str(schedule.token) and not data.get("conflict")):
        return None
    seen = number_of(data.get("seen", ""))
    records = records_of(schedule).filter(pk__gt=seen).exclude(operation="edit").order_by("-pk")
    return EditConflict(
        schedule.revisions().since(seen, most=MOST_RECORDS),
        [(record, SAID.get(record.operation, record.operation)) for record in records[:MOST_RECORDS]],
        [_named(part) for part in data.get("taken", "").split()],
        _undone(schedule, reading),
    )


def _undone(schedule: Schedule, reading: Reading) -> list[tuple[str, str, list[Change]]]:
    """Return what saving would change, as a list of tuples: field, name in words, changes.

    The list is empty if the form has errors.
    """
    if not reading.is_right:
        return []
    now = schedule.definition() | {"remaining": schedule.remaining}
    mine = {**now, **typed(reading), "steps": as_written(reading)}
    parts: dict[str, list[Change]] = {}
    for change in compare(now, mine):
        name = change.path.split(".")[0].split(",")[0].split("[")[0]
        parts.setdefault(name, []).append(change)
    return [(name, _named(name), changes) for name, changes in parts.items()]


def _named(part: str) -> str:
    return PARTS.get(part, part.replace("_", " "))
