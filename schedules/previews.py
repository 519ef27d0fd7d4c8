"""Previews of unsaved specs. Nothing here is stored."""

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
    """The next times that an edit would remove and add."""

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
    """Return a preview of a spec with its next `count` times; raise SpecError if the spec is invalid.

    `instead_of` is the schedule being edited, if any. `seed` is the `jitter_seed` of that schedule, or the
    name of a new schedule. `effort` limits the search.
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
        # If the effort ran out, the list of times is cut, so a missing time need not be a removed one.
        if not effort.is_spent:
            difference = changed_times(before, [row.at for row in upcoming], count)
    return Preview(parsed.describe(), parsed.time_zone, upcoming, warnings, difference)


def changed_times(before: Sequence[datetime], after: Sequence[datetime], count: int) -> Difference:
    """Return which times are only in `before`, and which are only in `after`.

    A list of `count` times may continue after its last time, so later times of the other list are ignored.
    """
    ends = [times[-1] for times in (before, after) if len(times) >= count > 0]
    known = min(ends) if ends else None
    old, new = ({at for at in times if known is None or at <= known} for times in (before, after))
    return Difference(sorted(old - new), sorted(new - old))


def _times(schedule: Schedule, count: int, now: datetime, effort: Effort) -> list[datetime]:
    try:
        return [row.at for row in schedule.upcoming(count, now=now, effort=effort)]
    except Refused:  # the stored spec is invalid
        return []
