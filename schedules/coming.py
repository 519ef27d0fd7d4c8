"""The times to come of a schedule, with those that are left out on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from text.words import on_the_clock

from .models import Schedule
from .models.occurrence import named_time
from .spec.explanation import Upcoming


class Time(NamedTuple):
    """`starts` is where its jitter puts it; `left_out_by` names whoever asked to leave it out."""

    at: datetime
    name: str
    local: str
    utc: str
    starts: str
    note: str
    left_out_by: str


def coming(schedule: Schedule, upcoming: Sequence[Upcoming]) -> list[Time]:
    return sorted([*_occurring(schedule, upcoming), *_left_out(schedule)])


def _occurring(schedule: Schedule, upcoming: Sequence[Upcoming]) -> Iterator[Time]:
    for row in upcoming:
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
