"""When a schedule is due: cron strings, intervals and one-off times, read on one time zone's clock.

Nothing here reads a clock or the database. Every rule answers one question, `first(floor)`: the earliest
nominal time at or after an instant. A spec is the union of its rules.
"""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from .cron import FIRST, LAST, Calendar, calendar_of, notes_on
from .wording import (
    UNITS,
    SpecError,
    calendar_words,
    counted,
    duration,
    interval_words,
    listed,
    moment_words,
    shown,
    span,
)
from .zones import change, gap_end, once, passes_of, wall_time, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECOND = timedelta(seconds=1)
LONGEST_INTERVAL = 3660 * 86400
MOST_RULES = {"cron": 100, "every": 100, "at": 1000}
DST_MODES = ("cron", "literal")


@dataclass(frozen=True)
class Spec:
    """The union of its rules; without any rule, a schedule is due only when somebody starts it by hand."""

    cron: tuple[str, ...] = ()
    every: tuple[Interval, ...] = ()
    at: tuple[datetime, ...] = ()
    time_zone: str = "UTC"
    dst: str = "cron"

    @classmethod
    def parse(cls, data: object) -> Spec:
        """Read the JSON stored on a schedule; the same JSON gives the same, already compiled, spec."""
        try:
            return _parsed(json.dumps(data, sort_keys=True, allow_nan=False))
        except SpecError:
            raise
        except (TypeError, ValueError, RecursionError):
            return _build(data)  # not JSON, or nested too deep for it: this names the value that is wrong

    def __post_init__(self) -> None:
        zone_of(self.time_zone)
        if self.dst not in DST_MODES:
            raise SpecError("dst", f"{shown(self.dst)} is not allowed; choose {' or '.join(DST_MODES)}")
        cron = tuple(dict.fromkeys(" ".join(expression.split()) for expression in self.cron))
        for expression in cron:
            calendar_of(expression)
        object.__setattr__(self, "cron", cron)
        object.__setattr__(self, "every", tuple(dict.fromkeys(self.every)))
        object.__setattr__(self, "at", tuple(sorted({_whole_second(moment) for moment in self.at})))

    def as_json(self) -> dict[str, object]:
        """Return the canonical form, without what has its default."""
        values: dict[str, object] = {
            "cron": list(self.cron),
            "every": [interval.as_json() for interval in self.every],
            "at": [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in self.at],
            "time_zone": self.time_zone,
            "dst": self.dst,
        }
        return {key: value for key, value in values.items() if value and value != getattr(Spec, key)}

    def next(self, after: datetime) -> datetime | None:
        """Return the first nominal time strictly after an instant, in UTC; None when there is none."""
        floor = _second_after(after)
        upcoming = (rule.first(floor) for rule in self._rules)
        return min((instant for instant in upcoming if instant and instant <= LAST), default=None)

    def times(self, after: datetime, until: datetime, *, limit: int | None = None) -> list[datetime]:
        """Return the nominal times in (after, until], in order, at most `limit` of them."""
        floor, until = _second_after(after), min(until, LAST)
        merged = heapq.merge(*(_walk(rule, floor, until) for rule in self._rules))
        return list(islice((instant for instant, _ in groupby(merged)), limit))

    def check(self, now: datetime) -> None:
        """Refuse, before it is saved, a spec that has no time left; one that can have none is never built."""
        if not self.is_manual and self.next(now) is None:
            last = f"; the last time is {self.at[-1]:%Y-%m-%d %H:%M:%S} UTC" if self.at else ""
            raise SpecError("at" if self.at else "", f"only matches in the past{last}")

    @property
    def is_manual(self) -> bool:
        return not (self.cron or self.every or self.at)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what is allowed but may surprise."""
        return tuple(note for expression in self.cron for note in notes_on(expression))

    def describe(self) -> str:
        """Say it in one English sentence."""
        if self.is_manual:
            return "Only when started by hand"
        calendars = [calendar_of(expression) for expression in self.cron]
        rules = [calendar_words(calendar) for calendar in calendars]
        rules += [interval_words(interval) for interval in self.every]
        rules += [f"once, {moment_words(moment.astimezone(zone_of(self.time_zone)))}" for moment in self.at]
        hidden = [f"and {counted(len(rules) - 10, 'more rule')}"] if len(rules) > 10 else []
        sentence = "; ".join(rules[:10] + hidden)
        reads_clock = self.at or not all(calendar.is_steady for calendar in calendars)
        return sentence[0].upper() + sentence[1:] + (f", {self.time_zone}" if reads_clock else "")

    @cached_property
    def _rules(self) -> tuple[_Rule, ...]:
        zone, literal = zone_of(self.time_zone), self.dst == "literal"
        calendars = [calendar_of(expression) for expression in self.cron]
        zoned = [_Zoned(calendar, zone, literal or calendar.is_wildcard) for calendar in calendars]
        return (*zoned, *self.every, *([_Moments(self.at)] if self.at else []))


class _Rule(Protocol):
    def first(self, floor: datetime) -> datetime | None:
        """Return the earliest nominal time at or after `floor`, a whole second in UTC."""


def _second_after(after: datetime) -> datetime:
    if after.utcoffset() is None:
        raise ValueError(f"an instant with a UTC offset expected, got {after}")
    inside = min(max(after, FIRST - SECOND), LAST)
    return inside.astimezone(UTC).replace(microsecond=0) + SECOND


def _walk(rule: _Rule, floor: datetime, until: datetime) -> Iterator[datetime]:
    while (instant := rule.first(floor)) is not None and instant <= until:
        yield instant
        floor = instant + SECOND


@dataclass(frozen=True)
class Interval:
    """Elapsed time, counted from the Unix epoch: daylight saving does not touch it."""

    seconds: int
    offset: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= LONGEST_INTERVAL:
            allowed = span("1s", duration(LONGEST_INTERVAL))
            raise SpecError("every", f"{shown(self.seconds)} seconds is out of range {allowed}")
        if not 0 <= self.offset < self.seconds:
            allowed = f"at least 0s and less than {duration(self.seconds)}"
            raise SpecError("every", f"offset {shown(self.offset)} seconds is out of range: {allowed}")

    def first(self, floor: datetime) -> datetime:
        rounds = -(-(int(floor.timestamp()) - self.offset) // self.seconds)
        return FIRST + timedelta(seconds=rounds * self.seconds + self.offset)

    def as_json(self) -> str | dict[str, str]:
        every = duration(self.seconds)
        return {"every": every, "offset": duration(self.offset)} if self.offset else every


class _Moments(NamedTuple):
    moments: tuple[datetime, ...]

    def first(self, floor: datetime) -> datetime | None:
        place = bisect_left(self.moments, floor)
        return self.moments[place] if place < len(self.moments) else None


class _Zoned(NamedTuple):
    """A calendar, and the zone whose clock it reads."""

    calendar: Calendar
    zone: ZoneInfo
    each_pass: bool

    def first(self, floor: datetime) -> datetime | None:
        return self._first_of_each_pass(floor) if self.each_pass else self._first_once(floor)

    def _first_of_each_pass(self, floor: datetime) -> datetime | None:
        """Every instant whose wall time matches: nothing in a gap, both passes of a fold."""
        wall = wall_time(floor, self.zone)
        passes = passes_of(wall, self.zone)
        turn = change(self.zone, *passes) if floor == passes[0] < passes[1] else None
        while (match := self.calendar.first(wall)) is not None:
            first_pass, second_pass = passes_of(match, self.zone)
            if turn is not None and first_pass >= turn:
                # The first pass has no match left, and the second returns to wall times before `wall`.
                floor, wall, turn = turn, wall_time(turn, self.zone), None
            elif first_pass > second_pass:
                wall = wall_time(change(self.zone, second_pass, first_pass), self.zone)
            else:
                return first_pass if first_pass >= floor else second_pass
        return None

    def _first_once(self, floor: datetime) -> datetime | None:
        """Every wall time at most once, as `once` has it."""
        wall = wall_time(floor, self.zone)
        first_pass, second_pass = passes_of(wall, self.zone)
        if first_pass < floor:
            # In the second pass, every wall time up to its end has had its turn.
            wall += change(self.zone, first_pass, second_pass) - first_pass
        while (match := self.calendar.first(wall)) is not None:
            if (instant := once(match, self.zone)) is not None:
                return instant
            wall = wall_time(gap_end(match, self.zone), self.zone)
        return None


@lru_cache(maxsize=16384)
def _parsed(canonical: str) -> Spec:
    return _build(json.loads(canonical))


def _build(data: object) -> Spec:
    values = _object("", data, allowed=("cron", "every", "at", "time_zone", "dst"))
    time_zone = _text("time_zone", values.get("time_zone", Spec.time_zone))
    dst = _text("dst", values.get("dst", Spec.dst))
    return Spec(
        cron=tuple(_cron(text) for text in _list("cron", values)),
        every=tuple(_interval(item) for item in _list("every", values)),
        at=tuple(moment_of(item, time_zone, dst) for item in _list("at", values)),
        time_zone=time_zone,
        dst=dst,
    )


def _object(field: str, data: object, *, allowed: Sequence[str]) -> dict[str, object]:
    if not isinstance(data, dict):
        raise SpecError(field, f"an object with {listed(allowed)} expected, got {shown(data)}")
    for key in data:
        if key not in allowed:
            raise SpecError(field, f"unknown key {shown(key)}; allowed: {listed(allowed)}")
    return data


def _list(field: str, values: dict[str, object]) -> list[object]:
    items = values.get(field, [])
    if not isinstance(items, list):
        raise SpecError(field, f"a list expected, got {shown(items)}")
    if len(items) > MOST_RULES[field]:
        raise SpecError(field, f"{len(items):,} entries are too many; at most {MOST_RULES[field]:,}")
    return items


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(field, f"text expected, got {shown(value)}")
    return value.strip()


def _cron(value: object) -> str:
    text = _text("cron", value)
    if not text:
        raise SpecError("cron", "is empty; 5 fields expected, such as 0 9 * * mon-fri")
    return text


def _interval(item: object) -> Interval:
    if not isinstance(item, dict):
        return Interval(_seconds(item))
    parts = _object("every", item, allowed=("every", "offset"))
    return Interval(_seconds(parts.get("every")), _seconds(parts.get("offset", 0)))


def _seconds(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    seconds = seconds_of(value) if isinstance(value, str) else None
    if seconds is None:
        examples = "90s, 15m, 1h30m, 2d or a whole number of seconds"
        raise SpecError("every", f"{shown(value)} is not a duration; write {examples}, at least 1s")
    return seconds


def seconds_of(text: str) -> int | None:
    """The length of a duration such as 1h30m; None if it is none."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None or not parts[0]:
        return None
    return sum(int(parts[unit] or 0) * seconds for unit, seconds in UNITS.items())


_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}){unit[0]})?" for unit in UNITS))
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def moment_of(value: object, time_zone: str, dst: str) -> datetime:
    text = _text("at", value)
    if not _MOMENT.fullmatch(text):
        examples = "2026-12-01T09:00 (on the clock of time_zone) or 2026-12-01T09:00:00Z"
        raise SpecError("at", f"{shown(text)} is not a time; write {examples}")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SpecError("at", f"{shown(text)} is not a time: {error}") from error
    if not FIRST.year <= moment.year <= LAST.year:
        allowed = span(FIRST.year, LAST.year)
        raise SpecError("at", f"{shown(text)}: year {moment.year} is out of range {allowed}")
    return moment if moment.tzinfo else _on_the_clock(moment, time_zone, dst)


def _on_the_clock(wall: datetime, time_zone: str, dst: str) -> datetime:
    zone = zone_of(time_zone)
    first_pass, second_pass = passes_of(wall, zone)
    instant = once(wall, zone) if dst == "cron" else first_pass
    if instant is None or (dst == "literal" and first_pass > second_pass):
        end = wall_time(gap_end(wall, zone), zone)
        start = end - (first_pass - second_pass)
        jump = f"the clocks of {time_zone} go from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
        raise SpecError("at", f"{wall:%Y-%m-%dT%H:%M} does not exist: {jump}")
    return instant


def _whole_second(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise SpecError("at", f"{moment} has no UTC offset")
    if not FIRST <= moment <= LAST:
        raise SpecError("at", f"{moment} is out of range {span(f'{FIRST:%Y-%m-%d}', f'{LAST:%Y-%m-%d}')}")
    return moment.astimezone(UTC).replace(microsecond=0)
