"""The upper part of a schedule's page: what it is doing, what it did, and what it will do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.http import HttpRequest

from activities import clock
from activities.words import on_the_clock
from schedules import permissions
from schedules.description import Description
from schedules.models import Schedule
from schedules.models.occurrence import named_time
from schedules.spec import SpecError


class Time(NamedTuple):
    """One row of the times to come; `left_out_by` names whoever asked to leave it out."""

    at: datetime
    name: str
    local: str
    utc: str
    starts: str
    note: str
    left_out_by: str


def overview(request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
    described = schedule.describe(now=clock.now())
    times = sorted([*_coming(schedule, described), *_left_out(schedule)])
    return {
        "is": described,
        "backfills": [(each, each.passed - each.waiting) for each in described.backfills],
        "notes": _notes(schedule),
        "zone": schedule.zone,
        "times": times,
        "has_jitter": any(time.starts for time in times),
        "has_notes": any(time.note or time.left_out_by for time in times),
        "skips": sorted(described.counters.skipped_by_reason.items()),
        "can_run": request.user.has_perm(permissions.RUN),
        "can_see_executions": request.user.has_perm("execution.view_execution"),
        "can_see_backfills": request.user.has_perm("schedules.view_backfill"),
    }


def _coming(schedule: Schedule, described: Description) -> Iterator[Time]:
    for row in described.upcoming:
        starts = on_the_clock(row.due_at, schedule.zone) if row.due_at != row.at else ""
        yield _time(schedule, row.at, starts=starts, note=row.note)


def _left_out(schedule: Schedule) -> Iterator[Time]:
    for name, by in schedule.skips.items() if schedule.status != Schedule.Status.CLOSED else ():
        yield _time(schedule, datetime.fromisoformat(name), left_out_by=by)


def _time(
    schedule: Schedule, at: datetime, *, starts: str = "", note: str = "", left_out_by: str = ""
) -> Time:
    local = on_the_clock(at, schedule.zone)
    return Time(at, named_time(at), local, on_the_clock(at), starts, note, left_out_by)


def _notes(schedule: Schedule) -> tuple[str, ...]:
    try:
        return schedule.compiled_spec.notes
    except SpecError:
        return ()
