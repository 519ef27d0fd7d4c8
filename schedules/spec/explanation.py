"""Explains why an instant is or is not a time of a spec."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from .compiled_exclusions import Exclusions
from .timeline import OnTheClock
from .wall_calendar import DAY, FIRST, LAST, SECOND
from .wording import SpecError, clock_words, date_words, listed, moment_words
from .zones import Stretch, stretch_at, zone_of

if TYPE_CHECKING:
    from .spec import Spec


class Verdict(NamedTuple):
    """An explanation; `kind` is nominal, excluded, before_start, after_end, gap, unmatched or manual."""

    kind: str
    words: str


class Upcoming(NamedTuple):
    at: datetime
    local: datetime
    due_at: datetime
    note: str


def explain(spec: Spec, at: datetime) -> Verdict:
    if spec.is_manual:
        return Verdict(
            "manual", "this schedule has no scheduled times; it runs only when started by hand or by an event"
        )
    if not FIRST <= at < LAST + SECOND:
        return Verdict("unmatched", f"schedules have times from {FIRST.year} to {LAST.year} only")
    if spec.start_at is not None and at < spec.start_at:
        return Verdict(
            "before_start", f"this is before the start of the schedule, {_local_words(spec, spec.start_at)}"
        )
    if spec.end_at is not None and at >= spec.end_at + SECOND:
        return Verdict(
            "after_end", f"this is after the end of the schedule, {_local_words(spec, spec.end_at)}"
        )
    return _explain_inside(spec, (at - FIRST) // SECOND)


def _explain_inside(spec: Spec, second: int) -> Verdict:
    stretch = stretch_at(second, zone_of(spec.time_zone))
    if next(spec.timeline.walk(second, second), None) is not None:
        note = note_on(spec, second)
        return Verdict("nominal", "this is one of the schedule's times" + (f" ({note})" if note else ""))
    if words := _excluded_words(spec, second, stretch):
        return Verdict("excluded", words)
    if words := _gap_words(spec, second, stretch):
        return Verdict("gap", words)
    return Verdict("unmatched", _fold_words(spec, second, stretch) or _nearest_words(spec, second))


def note_on(spec: Spec, second: int) -> str:
    """Describe how a clock change affects the nominal time `second`; return an empty string if none does."""
    zone = zone_of(spec.time_zone)
    stretch = stretch_at(second, zone)
    if second == stretch.start and spec.timeline.is_moved_to(stretch):
        missing = _missing_words(sorted(set(spec.timeline.swallowed(stretch))))
        return (
            f"also covers times that the clocks skip: {missing}"
            if _is_regular(spec, stretch)
            else f"moved: {missing}"
        )
    wall = second + stretch.offset
    if _is_second_pass(wall, stretch):
        return f"{_clock(wall)} occurs twice: the second time"
    later = stretch_at(second + DAY, zone)
    returns = later.start > second and later.before > later.offset and wall >= later.start + later.offset
    return f"{_clock(wall)} occurs twice: the first time" if returns else ""


def previous(spec: Spec, before: int) -> int | None:
    """Return the last nominal time before the instant `before`; None if there is none."""
    last, low, high = None, 0, before
    while low < high:
        middle = (low + high) // 2 if last is not None else low
        found = next(spec.walk(middle, before - 1), None)
        if found is not None:
            last, low = found, found + 1
        elif last is None:
            return None
        else:
            high = middle
    return last


def _excluded_words(spec: Spec, second: int, stretch: Stretch) -> str:
    bare = spec.timeline._replace(exclusions=Exclusions([]))
    if next(bare.walk(second, second), None) is None:
        return ""
    swallowed = bare.swallowed(stretch) if second == stretch.start else ()
    walls = (second + stretch.offset, *swallowed)
    return next(filter(None, (spec.timeline.exclusions.reason(wall, second) for wall in walls)), "")


def _gap_words(spec: Spec, second: int, stretch: Stretch) -> str:
    """Explain that a clock time does not exist; return an empty string if it does, or if no rule matches it.

    `second` is the instant that the clock time would have with the UTC offset before the gap.
    """
    gap, wall = stretch.offset - stretch.before, second + stretch.before
    if second >= stretch.start + gap or not _is_on_the_clock(spec, wall):
        return ""
    start, end = _wall(stretch.start + stretch.before), _wall(stretch.start + stretch.offset)
    if start.date() == end.date():
        jump = f"from {clock_words(start)} to {clock_words(end)} on {date_words(start)}"
    else:
        jump = f"from {moment_words(start)} to {moment_words(end)}"
    is_moved = spec.timeline.is_moved_to(stretch) and wall in spec.timeline.swallowed(stretch)
    moved = f", so the run takes place at {clock_words(end)}" if is_moved else ""
    return f"the clocks in {spec.time_zone} go {jump}: {_clock(wall)} does not exist on that day{moved}"


def _fold_words(spec: Spec, second: int, stretch: Stretch) -> str:
    wall = second + stretch.offset
    if not _is_second_pass(wall, stretch) or not _is_on_the_clock(spec, wall):
        return ""
    return f"{_clock(wall)} occurs twice on {date_words(_wall(wall))}; the schedule runs only the first time"


def _nearest_words(spec: Spec, second: int) -> str:
    near = [
        _local_words(spec, datetime.fromtimestamp(time, UTC))
        for time in (_found(lambda: previous(spec, second)), _found(lambda: next(spec.walk(second), None)))
        if time is not None
    ]
    nearest = f"; the nearest {'times are' if len(near) > 1 else 'time is'} {listed(near)}" if near else ""
    return f"no rule matches this time{nearest}"


def _found(search: Callable[[], int | None]) -> int | None:
    """Return the result of a search; None if it finds nothing, or stops after too many excluded times."""
    try:
        return search()
    except SpecError:
        return None


def _is_regular(spec: Spec, stretch: Stretch) -> bool:
    """Return whether the start of a stretch would be a nominal time if no skipped times were moved to it."""
    at, exclusions = stretch.start, spec.timeline.exclusions
    if exclusions.end(at + stretch.offset, at) is not None:
        return False
    rules = spec.timeline.rules
    return any(True for rule in rules for block in rule.blocks(stretch, at, at) for _ in block)


def _is_second_pass(wall: int, stretch: Stretch) -> bool:
    return wall < stretch.start + stretch.before and stretch.before > stretch.offset


def _is_on_the_clock(spec: Spec, wall: int) -> bool:
    rules = [rule for rule in spec.timeline.rules if isinstance(rule, OnTheClock)]
    return any(rule.calendar.matches(wall) for rule in rules)


def _missing_words(walls: list[int]) -> str:
    shown = [_clock(wall) for wall in walls[:3]] + (["others"] if len(walls) > 3 else [])
    return f"{listed(shown)} {'does' if len(walls) == 1 else 'do'} not exist on {date_words(_wall(walls[0]))}"


def _local_words(spec: Spec, at: datetime) -> str:
    return moment_words(at.astimezone(zone_of(spec.time_zone)))


def _clock(wall: int) -> str:
    return clock_words(_wall(wall))


def _wall(wall: int) -> datetime:
    return datetime.fromtimestamp(wall, UTC)
