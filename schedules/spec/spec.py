"""The times of a schedule: the union of its rules, read in one time zone, without the excluded times.

Nothing here reads a clock or the database.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, time, timedelta
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any

from .compiled_exclusions import Exclusions
from .cron import CronString, calendar_of, notes_on
from .exclusions import Exclusion, Shared, exclusion_words, exclusions_of
from .explanation import Upcoming, Verdict, explain, note_on, previous
from .intervals import LONGEST_INTERVAL, Interval, seconds_from
from .moments import bound_of, moment_of, whole_second
from .patterns import Pattern
from .sentences import calendar_words
from .shapes import each_of, list_of, object_of, text_of
from .structured import Structured
from .timeline import Effort, Moments, OnTheClock, Rule, Timeline, TooMuch
from .wall_calendar import FIRST, LAST, SECOND, Calendar, is_steady
from .wording import (
    SpecError,
    counted,
    date_words,
    duration,
    duration_words,
    interval_words,
    listed,
    moment_words,
    once_words,
    shown,
    span,
)
from .zones import zone_of

MOST_RULES = {"cron": 100, "every": 100, "calendars": 100, "patterns": 100, "at": 1000}
DST_MODES = ("cron", "literal")
NO_CALENDARS: Mapping[str, object] = MappingProxyType({})
_LAST = (LAST - FIRST) // SECOND
_DISTANCES_CHECKED = 200
_MOST_SAID = 10


@dataclass(frozen=True)
class Spec:
    """The times of a schedule: the union of its rules. A schedule without rules has no times."""

    cron: tuple[str, ...] = ()
    every: tuple[Interval, ...] = ()
    calendars: tuple[Structured, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    at: tuple[datetime, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: int = 0
    time_zone: str = "UTC"
    dst: str = "cron"

    @classmethod
    def parse(cls, data: object, calendars: Mapping[str, object] = NO_CALENDARS) -> Spec:
        """Parse the JSON stored on a schedule, given the definitions of the shared calendars that it names.

        Specs are cached: the same JSON returns the same compiled spec.
        """
        try:
            shared = tuple(Shared.parse(name, calendars[name]) for name in _calendar_names(data))
            return _parsed(json.dumps(data, sort_keys=True, allow_nan=False), shared)
        except SpecError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError):
            # Unknown calendar, not JSON, or nested too deeply: parse again for a clear error.
            return _build(data, calendars)

    def __post_init__(self) -> None:
        zone_of(self.time_zone)
        if self.dst not in DST_MODES:
            raise SpecError("dst", f"{shown(self.dst)} is not allowed; choose {' or '.join(DST_MODES)}")
        cron = tuple(dict.fromkeys(" ".join(expression.split()) for expression in self.cron))
        for expression in cron:
            calendar_of(expression)
        object.__setattr__(self, "cron", cron)
        object.__setattr__(self, "every", tuple(dict.fromkeys(self.every)))
        object.__setattr__(self, "at", tuple(sorted({whole_second("at", moment) for moment in self.at})))

    def as_json(self) -> dict[str, object]:
        """Return the spec in its canonical form, without default values."""
        values: dict[str, object] = {
            "cron": list(self.cron),
            "every": [interval.as_json() for interval in self.every],
            "calendars": [calendar.as_json() for calendar in self.calendars],
            "patterns": [pattern.as_json() for pattern in self.patterns],
            "at": [_as_text(moment) for moment in self.at],
            "exclude": [exclusion.as_json() for exclusion in self.exclude],
            "start_at": self.start_at and _as_text(self.start_at),
            "end_at": self.end_at and _as_text(self.end_at),
            "jitter": self.jitter and duration(self.jitter),
            "time_zone": self.time_zone,
            "dst": self.dst,
        }
        return {key: value for key, value in values.items() if value and value != getattr(Spec, key)}

    def next(self, after: datetime, effort: Effort | None = None) -> datetime | None:
        """Return the first nominal time strictly after an instant, in UTC; None if there is none."""
        for second in self.walk(_second_after(after), effort=effort):
            return datetime.fromtimestamp(second, UTC)
        return None

    def times(self, after: datetime, until: datetime, *, limit: int | None = None) -> list[datetime]:
        """Return the nominal times in (after, until], in order, at most `limit` of them."""
        return list(self.each(after, until, limit=limit))

    def each(self, after: datetime, until: datetime, *, limit: int | None = None) -> Iterator[datetime]:
        """Yield the nominal times in (after, until] one by one.

        If the search fails later, the times that were already found stay valid.
        """
        seconds = islice(self.walk(_second_after(after), _second_of(until)), limit)
        return (datetime.fromtimestamp(second, UTC) for second in seconds)

    def walk(self, floor: int, until: int = _LAST, *, effort: Effort | None = None) -> Iterator[int]:
        """Yield the nominal times between two instants, inclusive, in seconds since the epoch."""
        if self.start_at is not None:
            floor = max(floor, _second_of(self.start_at))
        if self.end_at is not None:
            until = min(until, _second_of(self.end_at))
        return self.timeline.walk(floor, min(until, _LAST), effort)

    def due_at(self, nominal: datetime, seed: str, effort: Effort | None = None) -> datetime:
        """Return the due time of a nominal time: with its jitter added, but before the next nominal time."""
        if not self.jitter:
            return nominal
        second = _second_of(nominal)
        try:
            following = next(self.walk(second + 1, second + self.jitter, effort=effort), None)
        except TooMuch:
            raise
        except SpecError:
            following = None  # the search found only exclusions before it gave up
        window = self.jitter if following is None else following - second
        return nominal.astimezone(UTC) + timedelta(seconds=delay(seed, second, window))

    def upcoming(
        self, after: datetime, count: int, seed: str, effort: Effort | None = None
    ) -> list[Upcoming]:
        """Return the next `count` nominal times, each with its local time, its due time and a note.

        `seed` is the schedule's `jitter_seed`. `effort` limits the search: if it is used up, only the times
        that were found until then are returned.
        """
        zone, rows = zone_of(self.time_zone), []
        try:
            for second in islice(self.walk(_second_after(after), effort=effort), count):
                at = datetime.fromtimestamp(second, UTC)
                due_at = self.due_at(at, seed, effort)
                rows.append(Upcoming(at, at.astimezone(zone), due_at, note_on(self, second)))
        except TooMuch:
            pass  # `effort.is_spent` tells the caller
        return rows

    def explain(self, at: datetime) -> Verdict:
        """Explain whether an instant is a nominal time, and if not, why not."""
        return explain(self, at)

    def check(self, now: datetime, minimum_seconds: int = 1, effort: Effort | None = None) -> None:
        """Raise SpecError if the spec has no times left, or if its times are too close together."""
        if self.is_manual:
            return
        if self.next(now, effort) is None:
            raise self._without_future(now, effort)
        if minimum_seconds > 1:
            self._check_distances(now, minimum_seconds)

    def _without_future(self, now: datetime, effort: Effort | None) -> SpecError:
        open_ended: dict[str, Any] = {"end_at": None, "start_at": None, "exclude": ()}
        for name, nothing in open_ended.items():
            following = replace(self, **{name: nothing}).next(now, effort) if getattr(self, name) else None
            if following is not None:
                without = f"without this field, the next time would be {_as_text(following)}"
                return SpecError(name, f"no scheduled times are left; {without}")
        last = previous(self, _second_after(now))
        if last is None:
            return SpecError(self._only_field, "this spec has no scheduled times at all")
        words = f"{datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return SpecError(self._only_field, f"all scheduled times are in the past; the last one was {words}")

    def _check_distances(self, now: datetime, minimum_seconds: int) -> None:
        """Raise SpecError if two of the next times are too close together; check only a limited number."""
        with suppress(TooMuch):
            walk = islice(self.walk(_second_after(now), effort=Effort()), _DISTANCES_CHECKED)
            for earlier, later in pairwise(walk):
                if later - earlier < minimum_seconds:
                    raise self._too_close(earlier, later, minimum_seconds)

    def _too_close(self, earlier: int, later: int, minimum_seconds: int) -> SpecError:
        pair = listed([_as_text(datetime.fromtimestamp(second, UTC)) for second in (earlier, later)])
        allowed = f"times must be at least {duration(minimum_seconds)} apart"
        return SpecError(self._only_field, f"{pair} are {duration(later - earlier)} apart; {allowed}")

    @property
    def _only_field(self) -> str:
        """Return the name of the only field with rules, or an empty string if several fields have rules."""
        given = [name for name in MOST_RULES if getattr(self, name)]
        return given[0] if len(given) == 1 else ""

    @property
    def is_manual(self) -> bool:
        return not (self.cron or self.every or self.calendars or self.patterns or self.at)

    @property
    def calendar_names(self) -> tuple[str, ...]:
        """Return the names of the shared calendars that the spec uses."""
        return tuple(item.name for item in self.exclude if isinstance(item, Shared))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes about rules that are allowed but may have an unexpected effect."""
        return (
            *(note for expression in self.cron for note in notes_on(expression)),
            *(note for structured in self.calendars for note in structured.notes),
            *(note for pattern in self.patterns for note in pattern.notes),
        )

    def describe(self) -> str:
        """Describe the spec in one English sentence."""
        if self.is_manual:
            return "Only when started by hand"
        rules = self._rule_words()
        hidden = [f"and {counted(len(rules) - _MOST_SAID, 'more rule')}"] if len(rules) > _MOST_SAID else []
        sentence = "; ".join(rules[:_MOST_SAID] + hidden)
        return ", ".join([sentence[0].upper() + sentence[1:], *self._condition_words()])

    def _rule_words(self) -> list[str]:
        zone = zone_of(self.time_zone)
        return [
            *map(calendar_words, self._calendars),
            *map(interval_words, self.every),
            *(once_words(moment.astimezone(zone)) for moment in self.at),
        ]

    def _condition_words(self) -> Iterator[str]:
        zone = zone_of(self.time_zone)
        is_bound = self.at or self.exclude or self.start_at or self.end_at
        if is_bound or not all(map(is_steady, self._calendars)):
            yield self.time_zone
        if self.start_at:
            yield f"from {_bound_words(self.start_at.astimezone(zone), whole_day=time.min)}"
        if self.end_at:
            yield f"until {_bound_words(self.end_at.astimezone(zone), whole_day=_END_OF_DAY)}"
        if self.exclude:
            yield f"except {exclusion_words(self.exclude)}"
        if self.jitter:
            yield f"up to {duration_words(self.jitter)} later"

    @cached_property
    def timeline(self) -> Timeline:
        literal = self.dst == "literal"
        rules: list[Rule] = [OnTheClock(each, literal or each.is_wildcard) for each in self._calendars]
        rules += self.every
        if self.at:
            rules.append(Moments(tuple(_second_of(moment) for moment in self.at)))
        return Timeline(zone_of(self.time_zone), tuple(rules), Exclusions(self.exclude))

    @cached_property
    def _calendars(self) -> tuple[Calendar, ...]:
        return (
            *map(calendar_of, self.cron),
            *(structured.calendar for structured in self.calendars),
            *(pattern.calendar for pattern in self.patterns),
        )


_END_OF_DAY = time(23, 59, 59)


def _second_after(after: datetime) -> int:
    if after.utcoffset() is None:
        raise ValueError(f"expected an instant with a UTC offset, got {after}")
    return _second_of(min(max(after, FIRST - SECOND), LAST)) + 1


def _second_of(instant: datetime) -> int:
    return (instant - FIRST) // SECOND


def _as_text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _bound_words(local: datetime, *, whole_day: time) -> str:
    return date_words(local) if local.time() == whole_day else moment_words(local)


def _calendar_names(data: object) -> list[str]:
    items = data.get("exclude") if isinstance(data, dict) else None
    names = [item.get("calendar") for item in items or () if isinstance(item, dict)]
    return [name.strip() for name in names if isinstance(name, str)]


@lru_cache(maxsize=16384)
def _parsed(canonical: str, shared: tuple[Shared, ...]) -> Spec:
    return _build(json.loads(canonical), {calendar.name: calendar for calendar in shared})


def _build(data: object, calendars: Mapping[str, object]) -> Spec:
    values = object_of("", data, allowed=[each.name for each in fields(Spec)])
    cron = each_of(_items(values, "cron"), CronString.parse)
    time_zone = _time_zone(values, cron)
    dst = text_of("dst", values.get("dst", Spec.dst))
    start_at, end_at = _bounds(values, time_zone, dst)
    intervals = [each.interval for each in cron if each.interval is not None]
    return Spec(
        cron=tuple(each.expression for each in cron if each.interval is None),
        every=(*intervals, *each_of(_items(values, "every"), Interval.parse)),
        calendars=each_of(_items(values, "calendars"), lambda item: Structured.parse("calendars", item)),
        patterns=each_of(_items(values, "patterns"), Pattern.parse),
        at=each_of(_items(values, "at"), lambda item: moment_of(item, time_zone, dst)),
        exclude=exclusions_of(values.get("exclude", []), calendars),
        start_at=start_at,
        end_at=end_at,
        jitter=_jitter(values.get("jitter", 0)),
        time_zone=time_zone,
        dst=dst,
    )


def _items(values: dict[str, object], name: str) -> list[object]:
    return list_of(name, values.get(name, []), most=MOST_RULES[name])


def _time_zone(values: dict[str, object], cron: tuple[CronString, ...]) -> str:
    """Return the time zone of a spec, from the field `time_zone` or from the prefix of the cron strings."""
    given = sorted({each.time_zone for each in cron if each.time_zone})
    if len(given) > 1:
        raise SpecError(
            "cron", f"the cron strings have different time zones ({listed(given)}); only one is allowed"
        )
    if "time_zone" not in values:
        return given[0] if given else Spec.time_zone
    time_zone = text_of("time_zone", values["time_zone"])
    if given and given != [time_zone]:
        raise SpecError(
            "cron", f"TZ={given[0]} differs from time_zone {shown(time_zone)}; set only one of them"
        )
    return time_zone


def _bounds(values: dict[str, object], time_zone: str, dst: str) -> tuple[datetime | None, datetime | None]:
    start_at, end_at = (
        bound_of(name, values[name], time_zone, dst, at=at) if values.get(name) is not None else None
        for name, at in (("start_at", time.min), ("end_at", _END_OF_DAY))
    )
    if start_at and end_at and end_at < start_at:
        raise SpecError("end_at", f"{_as_text(end_at)} is before start_at, {_as_text(start_at)}")
    return start_at, end_at


def _jitter(value: object) -> int:
    jitter = seconds_from("jitter", value)
    if not 0 <= jitter <= LONGEST_INTERVAL:
        allowed = span("0s", duration(LONGEST_INTERVAL))
        raise SpecError("jitter", f"{shown(jitter)} seconds is outside the range {allowed}")
    return jitter


def delay(seed: str, nominal: int, window: int) -> int:
    """Return the jitter of a time in whole seconds, at least 0 and less than `window`.

    The same seed and time always give the same jitter. Over many times, jitter is evenly distributed.
    """
    digest = blake2b(f"{seed}\n{nominal}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) * window >> 64
