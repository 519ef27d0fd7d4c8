"""When a schedule is due: cron strings, intervals and one-off times, read on one time zone's clock.

Nothing here reads a clock or the database. Every rule answers one question, `first(floor)`: the earliest
nominal time at or after an instant. A spec is the union of its rules.
"""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple, Protocol
from zoneinfo import ZoneInfo, available_timezones

from croniter import croniter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(2999, 12, 31, 23, 59, 59, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LONGEST_SHIFTED_GAP = timedelta(hours=3)
LONGEST_INTERVAL = 3660 * 86400
LONGEST_CRON = 1000
MOST_RULES = {"cron": 100, "every": 100, "at": 1000}
DST_MODES = ("cron", "literal")


class SpecError(ValueError):
    """Says which part of a spec is wrong, and what is allowed there."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


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
        _zone(self.time_zone)
        if self.dst not in DST_MODES:
            raise SpecError("dst", f"{_shown(self.dst)} is not allowed; choose {' or '.join(DST_MODES)}")
        cron = tuple(dict.fromkeys(" ".join(expression.split()) for expression in self.cron))
        for expression in cron:
            _calendar(expression)
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
        return tuple(note for expression in self.cron for note in _notes(expression))

    def describe(self) -> str:
        """Say it in one English sentence."""
        if self.is_manual:
            return "Only when started by hand"
        calendars = [_calendar(expression) for expression in self.cron]
        rules = [_calendar_words(calendar) for calendar in calendars]
        rules += [_interval_words(interval) for interval in self.every]
        rules += [f"once, {_moment_words(moment.astimezone(_zone(self.time_zone)))}" for moment in self.at]
        hidden = [f"and {_count(len(rules) - 10, 'more rule')}"] if len(rules) > 10 else []
        sentence = "; ".join(rules[:10] + hidden)
        reads_clock = self.at or not all(calendar.is_steady for calendar in calendars)
        return sentence[0].upper() + sentence[1:] + (f", {self.time_zone}" if reads_clock else "")

    @cached_property
    def _rules(self) -> tuple[_Rule, ...]:
        zone, literal = _zone(self.time_zone), self.dst == "literal"
        calendars = [_calendar(expression) for expression in self.cron]
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
            allowed = _range("1s", _duration(LONGEST_INTERVAL))
            raise SpecError("every", f"{_shown(self.seconds)} seconds is out of range {allowed}")
        if not 0 <= self.offset < self.seconds:
            allowed = f"at least 0s and less than {_duration(self.seconds)}"
            raise SpecError("every", f"offset {_shown(self.offset)} seconds is out of range: {allowed}")

    def first(self, floor: datetime) -> datetime:
        rounds = -(-(int(floor.timestamp()) - self.offset) // self.seconds)
        return FIRST + timedelta(seconds=rounds * self.seconds + self.offset)

    def as_json(self) -> str | dict[str, str]:
        every = _duration(self.seconds)
        return {"every": every, "offset": _duration(self.offset)} if self.offset else every


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
        wall = _wall(floor, self.zone)
        passes = _passes(wall, self.zone)
        turn = _change(self.zone, *passes) if floor == passes[0] < passes[1] else None
        while (match := self.calendar.first(wall)) is not None:
            first_pass, second_pass = _passes(match, self.zone)
            if turn is not None and first_pass >= turn:
                # The first pass has no match left, and the second returns to wall times before `wall`.
                floor, wall, turn = turn, _wall(turn, self.zone), None
            elif first_pass > second_pass:
                wall = _wall(_change(self.zone, second_pass, first_pass), self.zone)
            else:
                return first_pass if first_pass >= floor else second_pass
        return None

    def _first_once(self, floor: datetime) -> datetime | None:
        """Every wall time at most once, as `_once` has it."""
        wall = _wall(floor, self.zone)
        first_pass, second_pass = _passes(wall, self.zone)
        if first_pass < floor:
            # In the second pass, every wall time up to its end has had its turn.
            wall += _change(self.zone, first_pass, second_pass) - first_pass
        while (match := self.calendar.first(wall)) is not None:
            if (instant := _once(match, self.zone)) is not None:
                return instant
            wall = _wall(_gap_end(match, self.zone), self.zone)
        return None


def _wall(instant: datetime, zone: ZoneInfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _once(wall: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first pass of a wall time; the end of a short gap that swallows it; None in a longer one."""
    first_pass, second_pass = _passes(wall, zone)
    if first_pass <= second_pass:
        return first_pass
    return _gap_end(wall, zone) if first_pass - second_pass <= LONGEST_SHIFTED_GAP else None


def _passes(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Return the instants of both folds: equal on ordinary days, in order in a fold, reversed in a gap."""
    local = wall.replace(tzinfo=zone)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


def _gap_end(wall: datetime, zone: ZoneInfo) -> datetime:
    after, before = _passes(wall, zone)
    return _change(zone, before, after)


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first instant with another UTC offset than `before`, not later than `after`."""
    offset = before.astimezone(zone).utcoffset()
    low, high = int(before.timestamp()), int(after.timestamp())
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return datetime.fromtimestamp(high, UTC)


@dataclass(frozen=True)
class Calendar:
    """Wall-clock times by sorted field values; weekdays count from Monday = 0, as Python has it."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool
    is_wildcard: bool

    def first(self, wall: datetime) -> datetime | None:
        """Return the first match at or after a naive wall time."""
        if wall.second:
            wall += timedelta(seconds=60 - wall.second)
        date = self._first_date(wall.year, wall.month, wall.day)
        if date == (wall.year, wall.month, wall.day):
            if (time := self._first_time(wall.hour, wall.minute)) is not None:
                return wall.replace(hour=time[0], minute=time[1])
            date = self._first_date(wall.year, wall.month, wall.day + 1)
        if date is None:
            return None
        return wall.replace(*date, hour=self.hours[0], minute=self.minutes[0])

    def _first_time(self, hour: int, minute: int) -> tuple[int, int] | None:
        place = bisect_left(self.hours, hour)
        if place < len(self.hours) and self.hours[place] == hour:
            if minute <= self.minutes[-1]:
                return hour, self.minutes[bisect_left(self.minutes, minute)]
            place += 1
        return (self.hours[place], self.minutes[0]) if place < len(self.hours) else None

    def _first_date(self, year: int, month: int, day: int) -> tuple[int, int, int] | None:
        while year <= LAST.year:
            place = bisect_left(self.months, month)
            if place == len(self.months):
                year, month, day = year + 1, 1, 1
                continue
            if self.months[place] != month:
                month, day = self.months[place], 1
            first_weekday, length = monthrange(year, month)
            days = self._days_by_shape[first_weekday][length - 28]
            if days and day <= days[-1]:
                return year, month, days[bisect_left(days, day)]
            month, day = month + 1, 1
        return None

    @cached_property
    def _days_by_shape(self) -> list[list[tuple[int, ...]]]:
        """The matching days of a month, by the weekday of its first day and by its length from 28 on."""
        return [[self._days(first_weekday, length) for length in range(28, 32)] for first_weekday in range(7)]

    def _days(self, first_weekday: int, length: int) -> tuple[int, ...]:
        enough = any if self.either_day else all
        return tuple(
            day
            for day in range(1, length + 1)
            if enough((day in self.days, (first_weekday + day - 1) % 7 in self.weekdays))
        )

    @property
    def is_daily(self) -> bool:
        return len(self.days) == 31 and len(self.weekdays) == 7 and len(self.months) == 12

    @property
    def is_steady(self) -> bool:
        return self.is_daily and len(self.hours) == 24 and _even_step(self.minutes, 60) is not None


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Mapping[str, int]

    def plain(self, text: str) -> str:
        """Check one field and write it so that croniter can only read it in one way.

        croniter takes 5-5 and 59/5 for the whole range, wraps backward ranges and draws R at random.
        """
        return ",".join(self._plain_item(item, text) for item in text.split(","))

    def _plain_item(self, item: str, text: str) -> str:
        parts = _ITEM.fullmatch(item)
        if parts is None:
            raise ValueError(self._not_understood(item or text))
        step = int(parts["step"] or 1)
        if step == 0:
            raise ValueError(f"{self.name} {_shown(item)} has step 0; a step is 1 or more")
        if parts["low"] is None:
            return item
        low, high = self._bounds(parts, item)
        return str(low) if low == high else f"{low}-{high}/{step}"

    def _bounds(self, parts: re.Match[str], item: str) -> tuple[int, int]:
        low = self._value(parts["low"])
        if parts["high"] is None:
            return low, self.high if parts["step"] else low
        high = self._value(parts["high"])
        if low and parts["high"].lower() == "sun":
            high = 7
        if low > high:
            raise ValueError(f"{self.name} range {_shown(item)} runs backwards; put the smaller value first")
        return low, high

    def _value(self, text: str) -> int:
        value = self.names.get(text.lower())
        if value is None and not text.isdigit():
            raise ValueError(self._not_understood(text))
        value = int(text) if value is None else value
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.name} {_shown(value)} is out of range {_range(self.low, self.high)}")
        return value

    def _not_understood(self, text: str) -> str:
        verdict = "supported" if _QUARTZ.fullmatch(text) else "understood"
        names = f" or {_and(list(self.names))}" if self.names else ""
        values = f"{_range(self.low, self.high)}{names}"
        return f"{self.name} {_shown(text)} is not {verdict}; allowed: {values}, *, a-b, */n, a-b/n and a,b"


_ITEM = re.compile(r"(?:\*|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)
_QUARTZ = re.compile(r"\?|\d*[LW]+\d*|\w+#\d+|[HR]\b.*", re.ASCII | re.IGNORECASE)
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name[:3].lower(): number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 7, {name[:3].lower(): number % 7 for number, name in enumerate(_WEEKDAYS, 1)}),
)
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@lru_cache(maxsize=16384)
def _calendar(expression: str) -> Calendar:
    try:
        fields = _split(expression)
        plain = " ".join(field.plain(text) for field, text in zip(_FIELDS, fields, strict=True))
        expanded, _ = croniter.expand(plain)
    except ValueError as error:
        raise SpecError("cron", f"{error} (in {_shown(expression)})") from error
    calendar = _compile(fields, expanded)
    if calendar.first(FIRST.replace(tzinfo=None)) is None:
        raise SpecError("cron", f"{_shown(expression)} never matches: no month it allows has such a day")
    return calendar


def _split(expression: str) -> list[str]:
    if len(expression) > LONGEST_CRON:
        raise ValueError(f"{len(expression):,} characters are too many; at most {LONGEST_CRON:,}")
    if not expression.isascii():
        raise ValueError("only ASCII characters are allowed")
    if expression.lower() == "@reboot":
        raise ValueError("@reboot is not supported: a schedule does not belong to one machine's start")
    if expression.startswith("@") and expression.lower() not in _SHORTHANDS:
        raise ValueError(f"{_shown(expression)} is not known; allowed: {_and(list(_SHORTHANDS))}")
    fields = _SHORTHANDS.get(expression.lower(), expression).split()
    if len(fields) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise ValueError(f"{len(_FIELDS)} fields expected, got {len(fields)}: {names}")
    return fields


def _compile(fields: Sequence[str], expanded: Sequence[Sequence[object]]) -> Calendar:
    minutes, hours, days, months, weekdays = (
        tuple(
            range(field.low, field.high + 1) if "*" in values else sorted(int(str(value)) for value in values)
        )
        for field, values in zip(_FIELDS, expanded, strict=True)
    )
    starred = [text.startswith("*") for text in fields]
    return Calendar(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=tuple(sorted({(weekday - 1) % 7 for weekday in weekdays})),
        either_day=not (starred[2] or starred[4]),
        is_wildcard=starred[0] or starred[1],
    )


def _notes(expression: str) -> Iterator[str]:
    calendar, fields = _calendar(expression), _split(expression)
    for field, text in zip(_FIELDS, fields, strict=True):
        for item in text.split(","):
            if "/" in item and int(item.partition("/")[2]) > field.high - field.low:
                yield f"{field.name} {item} steps past {field.high}: only its first value matches"
    if calendar.either_day:
        yield f"{expression} gives both day of month and day of week: a day that matches either is enough"


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
        at=tuple(_moment(item, time_zone, dst) for item in _list("at", values)),
        time_zone=time_zone,
        dst=dst,
    )


def _object(field: str, data: object, *, allowed: Sequence[str]) -> dict[str, object]:
    if not isinstance(data, dict):
        raise SpecError(field, f"an object with {_and(allowed)} expected, got {_shown(data)}")
    for key in data:
        if key not in allowed:
            raise SpecError(field, f"unknown key {_shown(key)}; allowed: {_and(allowed)}")
    return data


def _list(field: str, values: dict[str, object]) -> list[object]:
    items = values.get(field, [])
    if not isinstance(items, list):
        raise SpecError(field, f"a list expected, got {_shown(items)}")
    if len(items) > MOST_RULES[field]:
        raise SpecError(field, f"{len(items):,} entries are too many; at most {MOST_RULES[field]:,}")
    return items


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(field, f"text expected, got {_shown(value)}")
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
    parts = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if parts is None or not parts[0]:
        examples = "90s, 15m, 1h30m, 2d or a whole number of seconds"
        raise SpecError("every", f"{_shown(value)} is not a duration; write {examples}, at least 1s")
    return sum(int(parts[unit] or 0) * seconds for unit, seconds in _UNITS.items())


_UNITS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,9}}){unit[0]})?" for unit in _UNITS))
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def _moment(value: object, time_zone: str, dst: str) -> datetime:
    text = _text("at", value)
    if not _MOMENT.fullmatch(text):
        examples = "2026-12-01T09:00 (on the clock of time_zone) or 2026-12-01T09:00:00Z"
        raise SpecError("at", f"{_shown(text)} is not a time; write {examples}")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SpecError("at", f"{_shown(text)} is not a time: {error}") from error
    if not FIRST.year <= moment.year <= LAST.year:
        allowed = _range(FIRST.year, LAST.year)
        raise SpecError("at", f"{_shown(text)}: year {moment.year} is out of range {allowed}")
    return moment if moment.tzinfo else _on_the_clock(moment, time_zone, dst)


def _on_the_clock(wall: datetime, time_zone: str, dst: str) -> datetime:
    zone = _zone(time_zone)
    first_pass, second_pass = _passes(wall, zone)
    instant = _once(wall, zone) if dst == "cron" else first_pass
    if instant is None or (dst == "literal" and first_pass > second_pass):
        end = _wall(_gap_end(wall, zone), zone)
        start = end - (first_pass - second_pass)
        jump = f"the clocks of {time_zone} go from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
        raise SpecError("at", f"{wall:%Y-%m-%dT%H:%M} does not exist: {jump}")
    return instant


def _whole_second(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise SpecError("at", f"{moment} has no UTC offset")
    if not FIRST <= moment <= LAST:
        raise SpecError("at", f"{moment} is out of range {_range(f'{FIRST:%Y-%m-%d}', f'{LAST:%Y-%m-%d}')}")
    return moment.astimezone(UTC).replace(microsecond=0)


@lru_cache(maxsize=1024)
def _zone(name: str) -> ZoneInfo:
    if _is_place(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # unknown, malformed, or a folder of the time zone database
    raise SpecError("time_zone", f"{_shown(name)} {_zone_advice(name)}")


def _is_place(name: str) -> bool:
    """Tell real zones from abbreviations, whose rules are frozen, and from this machine's own files."""
    return name in ("UTC", "GMT") or ("/" in name and not name.startswith(("posix/", "right/")))


def _zone_advice(name: str) -> str:
    if name in _ABBREVIATIONS:
        return f"is an abbreviation, not a place; use {_ABBREVIATIONS[name]}"
    wanted = name[:64].lower().replace(" ", "_")
    zones = {zone.lower(): zone for zone in time_zones()}
    cities = {zone.lower().rpartition("/")[2]: zone for zone in time_zones()}
    close = get_close_matches(wanted, zones, n=1, cutoff=0.75) or get_close_matches(wanted, cities, n=1)
    if not close:
        return "is not a known time zone; use UTC or a place such as Europe/London"
    return f"is not a known time zone; did you mean {zones.get(close[0]) or cities[close[0]]}?"


@lru_cache(maxsize=1)
def time_zones() -> list[str]:
    return sorted(zone for zone in available_timezones() if _is_place(zone))


_ABBREVIATIONS = {
    "EST5EDT": "America/New_York",
    "CST6CDT": "America/Chicago",
    "MST7MDT": "America/Denver",
    "PST8PDT": "America/Los_Angeles",
    "EST": "America/Panama",
    "MST": "America/Phoenix",
    "HST": "Pacific/Honolulu",
    "WET": "Europe/Lisbon",
    "CET": "Europe/Brussels",
    "MET": "Europe/Brussels",
    "EET": "Europe/Athens",
}


def _calendar_words(calendar: Calendar) -> str:
    time, days = _time_words(calendar), _day_words(calendar)
    return f"{time} {days or ('every day' if time.startswith('at ') and ':' in time else '')}".rstrip()


def _time_words(calendar: Calendar) -> str:
    hours, minutes = calendar.hours, calendar.minutes
    span = f"from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    minute_step, hour_step = _even_step(minutes, 60), _even_step(hours, 24)
    if minute_step and _is_run(hours):
        return f"every {_each(minute_step, 'minute')}" + ("" if hour_step == 1 else f" {span}")
    if len(minutes) == 1 and hour_step and len(hours) > 3 and (minutes[0] == 0 or hour_step > 1):
        return f"every {_each(hour_step, 'hour')}" + (f" from 00:{minutes[0]:02}" if minutes[0] else "")
    if len(minutes) == 1 and hour_step is None and _is_long_run(hours):
        return f"every hour {span}"
    if len(hours) * len(minutes) <= 6:
        return f"at {_and([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    past = "every hour" if hour_step == 1 else f"{'hour' if len(hours) == 1 else 'hours'} {_numbers(hours)}"
    return f"at {'minute' if len(minutes) == 1 else 'minutes'} {_numbers(minutes)} past {past}"


def _day_words(calendar: Calendar) -> str:
    months = "" if len(calendar.months) == 12 else _and(_runs(calendar.months, _MONTHS, first=1))
    within = f" {'from' if _is_long_run(calendar.months) else 'in'} {months}" if months else ""
    weekdays = _weekday_words(calendar.weekdays)
    if len(calendar.days) == 31 and not calendar.either_day:
        return f"{weekdays}{within}".lstrip()
    days = f"on {_dates(calendar.days)} of {months or 'the month'}"
    if calendar.either_day:
        return f"{days} or {weekdays or 'on any day'}{within}"
    if not weekdays:
        return days
    return f"{days} if that is {_and([_WEEKDAYS[day] for day in calendar.weekdays], last='or')}"


def _weekday_words(weekdays: tuple[int, ...]) -> str:
    known = {(0, 1, 2, 3, 4): "on weekdays", (5, 6): "at weekends", (0, 1, 2, 3, 4, 5, 6): ""}
    preposition = "from" if _is_long_run(weekdays) else "on"
    return known.get(weekdays, f"{preposition} {_and(_runs(weekdays, _WEEKDAYS))}")


def _dates(days: Sequence[int]) -> str:
    step = days[1] - days[0] if len(days) > 4 else 1
    if step > 1 and list(days) == list(range(days[0], days[-1] + 1, step)):
        return f"every {_ordinal(step)} day from the {_ordinal(days[0])} to the {_ordinal(days[-1])}"
    return f"the {_and(_runs(days, [_ordinal(day) for day in range(1, 32)], first=1))}"


def _interval_words(interval: Interval) -> str:
    counts = [count for count in _parts(interval.seconds) if count[0]]
    every = _each(*counts[0]) if len(counts) == 1 else _duration_words(interval.seconds)
    return f"every {every}" + (f", offset by {_duration_words(interval.offset)}" if interval.offset else "")


def _moment_words(local: datetime) -> str:
    time = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    return f"at {time} on {local.day} {_MONTHS[local.month - 1]} {local.year}"


def _duration(seconds: int) -> str:
    return "".join(f"{count}{unit[0]}" for count, unit in _parts(seconds) if count) or "0s"


def _duration_words(seconds: int) -> str:
    return " ".join(_count(count, unit) for count, unit in _parts(seconds) if count)


def _parts(seconds: int) -> list[tuple[int, str]]:
    parts = []
    for unit, length in _UNITS.items():
        parts.append((seconds // length, unit))
        seconds %= length
    return parts


def _even_step(values: Sequence[int], size: int) -> int | None:
    """Return n where the values are every nth of `size`, without a remainder at the end."""
    step = size // len(values)
    return step if len(values) > 1 and list(values) == list(range(0, size, step)) else None


def _is_run(values: Sequence[int]) -> bool:
    return values[-1] - values[0] == len(values) - 1


def _is_long_run(values: Sequence[int]) -> bool:
    return len(values) > 2 and _is_run(values)


def _runs(values: Sequence[int], names: Sequence[str], first: int = 0) -> list[str]:
    """Name the values, three or more in a row as "a to c"."""
    words: list[str] = []
    for _, group in groupby(enumerate(values), lambda pair: pair[1] - pair[0]):
        run = [names[value - first] for _, value in group]
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run
    return words


def _numbers(values: Sequence[int]) -> str:
    return _and(_runs(values, [str(value) for value in range(60)]))


def _and(words: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _each(count: int, noun: str) -> str:
    return noun if count == 1 else _count(count, noun)


def _ordinal(number: int) -> str:
    suffix = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _range(low: object, high: object) -> str:
    return f"{low}\N{EN DASH}{high}"


def _shown(value: object) -> str:
    """Show a refused value in a message, whatever its size and content."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:60]}…")
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
