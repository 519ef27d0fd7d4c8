"""Why a spec has a time, or has not: in words, for any instant."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from .exclusions import Exclusions
from .timeline import OnTheClock
from .wall_calendar import DAY
from .wording import SpecError, clock_words, date_words, listed, moment_words
from .zones import Stretch, stretch_at, zone_of

if TYPE_CHECKING:
    from .spec import Spec

_LOOK_BACK = [
    timedelta(minutes=1),
    timedelta(hours=1),
    *(timedelta(days=days) for days in (2, 40, 800, 36_600)),
]


class Verdict(NamedTuple):
    """`kind` is nominal, excluded, before_start, after_end, gap, unmatched or manual."""

    kind: str
    words: str


class Upcoming(NamedTuple):
    at: datetime
    local: datetime
    due_at: datetime
    note: str


def explain(spec: Spec, at: datetime) -> Verdict:
    if spec.is_manual:
        return Verdict("manual", "it has no times of its own: it runs only when somebody starts it")
    if spec.start_at is not None and at < spec.start_at:
        return Verdict("before_start", f"it is before the start, {_local_words(spec, spec.start_at)}")
    if spec.end_at is not None and at >= spec.end_at + timedelta(seconds=1):
        return Verdict("after_end", f"it is after the end, {_local_words(spec, spec.end_at)}")
    second = int(at.timestamp())
    stretch = stretch_at(second, zone_of(spec.time_zone))
    if next(spec.timeline.walk(second, second), None) is not None:
        note = note_on(spec, at)
        return Verdict("nominal", "it is one of its times" + (f" ({note})" if note else ""))
    words = _excluded_words(spec, second, stretch)
    if words:
        return Verdict("excluded", words)
    words = _gap_words(spec, second, stretch)
    return Verdict("gap", words) if words else Verdict("unmatched", _unmatched_words(spec, at, stretch))


def note_on(spec: Spec, at: datetime) -> str:
    """What a change of the clocks does to this nominal time; nothing on ordinary days."""
    second, zone = int(at.timestamp()), zone_of(spec.time_zone)
    stretch = stretch_at(second, zone)
    wall = second + stretch.offset
    if second == stretch.start and (moved := _moved(spec, stretch)):
        is_regular = next(_regular(spec, second, stretch), None) is not None
        missing = _missing_words(moved)
        return f"also for a time that is missing: {missing}" if is_regular else f"moved: {missing}"
    if stretch.before > stretch.offset and wall < stretch.start + stretch.before:
        return f"second of two {_clock(wall)}s"
    following = stretch_at(second + DAY, zone)
    if following.start > second and following.before > following.offset:
        return f"first of two {_clock(wall)}s" if wall >= following.start + following.offset else ""
    return ""


def previous(spec: Spec, before: datetime) -> datetime | None:
    """The last nominal time before an instant, or at most a century before it."""
    for distance in _LOOK_BACK:
        try:
            times = spec.times(max(before - distance, _EARLIEST), before - timedelta(seconds=1))
        except SpecError:
            return None
        if times:
            return times[-1]
    return None


_EARLIEST = datetime(1969, 12, 31, tzinfo=UTC)


def _excluded_words(spec: Spec, second: int, stretch: Stretch) -> str:
    timeline = spec.timeline
    bare = timeline._replace(exclusions=Exclusions(()))
    walls = [instant + stretch.offset for instant in bare.walk(second, second)]
    if second == stretch.start:
        walls += bare.swallowed(stretch)
    for wall in walls:
        if timeline.exclusions.end(wall, second) is not None:
            return timeline.exclusions.reason(wall, second)
    return ""


def _gap_words(spec: Spec, second: int, stretch: Stretch) -> str:
    """A time that the clocks leave out is asked for by the instant at which the old offset would have it."""
    gap, wall = stretch.offset - stretch.before, second + stretch.before
    if not 0 < gap or second >= stretch.start + gap:
        return ""
    rules = [rule for rule in _on_the_clock(spec) if rule.calendar.matches(wall)]
    if not rules:
        return ""
    start, end = _wall(stretch.start + stretch.before), _wall(stretch.start + stretch.offset)
    if start.date() == end.date():
        jump = f"from {clock_words(start)} to {clock_words(end)} on {date_words(start)}"
    else:
        jump = f"from {moment_words(start)} to {moment_words(end)}"
    words = f"the clocks of {spec.time_zone} go {jump}: {_clock(wall)} does not exist on that day"
    moves = wall in spec.timeline.swallowed(stretch) and _moved(spec, stretch)
    return words + (f", and takes place at {clock_words(end)}" if moves else "")


def _unmatched_words(spec: Spec, at: datetime, stretch: Stretch) -> str:
    second = int(at.timestamp())
    wall = second + stretch.offset
    if stretch.before > stretch.offset and wall < stretch.start + stretch.before:
        if any(rule.calendar.matches(wall) for rule in _on_the_clock(spec)):
            return f"{_clock(wall)} comes twice on {date_words(_wall(wall))}, and the first of the two counts"
    try:
        following = spec.next(at)
    except SpecError:
        following = None
    near = [_local_words(spec, time) for time in (previous(spec, at), following) if time is not None]
    if not near:
        return "no rule gives this time"
    return (
        f"no rule gives this time; the nearest {'times are' if len(near) > 1 else 'time is'} {listed(near)}"
    )


def _moved(spec: Spec, stretch: Stretch) -> list[int]:
    """The wall times that take place where a stretch begins."""
    if not spec.timeline.is_moved_to(stretch):
        return []
    return sorted(set(spec.timeline.swallowed(stretch)))


def _regular(spec: Spec, second: int, stretch: Stretch) -> Iterator[int]:
    blocks = (rule.blocks(stretch, second, second) for rule in spec.timeline.rules)
    instants = chain.from_iterable(chain.from_iterable(blocks))
    exclusions = spec.timeline.exclusions
    return (instant for instant in instants if exclusions.end(instant + stretch.offset, instant) is None)


def _on_the_clock(spec: Spec) -> list[OnTheClock]:
    return [rule for rule in spec.timeline.rules if isinstance(rule, OnTheClock)]


def _missing_words(walls: list[int]) -> str:
    shown = [_clock(wall) for wall in walls[:3]] + (["others"] if len(walls) > 3 else [])
    return f"{listed(shown)} {'does' if len(walls) == 1 else 'do'} not exist on {date_words(_wall(walls[0]))}"


def _local_words(spec: Spec, at: datetime) -> str:
    return moment_words(at.astimezone(zone_of(spec.time_zone)))


def _clock(wall: int) -> str:
    return clock_words(_wall(wall))


def _wall(wall: int) -> datetime:
    return datetime.fromtimestamp(wall, UTC).replace(tzinfo=None)
