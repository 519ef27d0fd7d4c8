"""The upper part of a schedule's page: what it is doing, what it did, and what it will do."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from database import clock
from schedules import permissions
from schedules.coming import coming
from schedules.description import shown_state
from schedules.models import Schedule
from schedules.spec import SpecError


def overview(request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
    described = schedule.describe(now=clock.now())
    times = coming(schedule, described.upcoming)
    return {
        "is": described,
        "state": shown_state(described.state),
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


def _notes(schedule: Schedule) -> tuple[str, ...]:
    try:
        return schedule.compiled_spec.notes
    except SpecError:
        return ()
