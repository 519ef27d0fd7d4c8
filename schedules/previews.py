"""What a spec would do, before anybody saves it. Nothing here is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.conf import settings

from .models import Refused, Schedule, SharedCalendar
from .spec import Spec, SpecError
from .spec.explanation import Upcoming
from .spec.timeline import TOO_MUCH, Effort


class Difference(NamedTuple):
    """Of the next times: those that would not be any more, and those that would be new."""

    gone: list[datetime]
    added: list[datetime]


@dataclass(frozen=True)
class Preview:
    sentence: str
    time_zone: str
    upcoming: list[Upcoming]
    warnings: list[str]
    difference: Difference | None = None


def preview(
    spec: object,
    *,
    count: int,
    now: datetime,
    seed: str = "",
    instead_of: Schedule | None = None,
    effort: Effort | None = None,
) -> Preview:
    """SpecError if it is none. `instead_of` is the schedule that would be edited, `seed` its `jitter_seed`.

    A schedule that is not saved yet gets its name as its seed.
    """
    effort = effort or Effort()
    parsed = Spec.parse(spec, SharedCalendar.objects.needed_by(spec))
    warnings = list(parsed.notes)
    try:
        upcoming = parsed.upcoming(now, count, seed, effort)
        if effort.is_spent:
            warnings.append(f"exclude: {TOO_MUCH}")
        else:
            parsed.check(now, settings.JIM_MINIMUM_INTERVAL_SECONDS, effort)
    except SpecError as error:
        upcoming, warnings = [], [*warnings, str(error)]
    difference = None
    if instead_of is not None:
        before = _times(instead_of, count, now, effort)
        # A list that was cut short does not say which times are gone.
        if not effort.is_spent:
            difference = changed_times(before, [row.at for row in upcoming], count)
    return Preview(parsed.describe(), parsed.time_zone, upcoming, warnings, difference)


def changed_times(before: Sequence[datetime], after: Sequence[datetime], count: int) -> Difference:
    """As far as both were looked at: a list of `count` times goes on after its last one."""
    ends = [times[-1] for times in (before, after) if len(times) >= count > 0]
    known = min(ends) if ends else None
    old, new = ({at for at in times if known is None or at <= known} for times in (before, after))
    return Difference(sorted(old - new), sorted(new - old))


def _times(schedule: Schedule, count: int, now: datetime, effort: Effort) -> list[datetime]:
    try:
        return [row.at for row in schedule.upcoming(count, now=now, effort=effort)]
    except Refused:  # it is broken, which is why somebody edits it
        return []
