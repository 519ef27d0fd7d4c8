"""Save a valid draft as a schedule, or report why it was refused."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError

from operations.initiator import Initiator
from schedules import permissions
from schedules.models import Refused, Schedule, Step
from text.numbers import whole_number

from .reading import Reading

NAME_TAKEN = "This name was just taken by another schedule. Choose another name."


def save(reading: Reading, *, user: Any, initiator: Initiator, now: datetime) -> Schedule | None:
    """Save the draft, or add errors to `reading` and return None. Raise Conflict if the draft is outdated."""
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
