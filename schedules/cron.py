"""Cron strings: croniter expands them, one calendar of wall-clock times matches them."""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from croniter import croniter

from .wording import MONTHS, WEEKDAYS, SpecError, even_step, listed, shown, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FIRST = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(2999, 12, 31, 23, 59, 59, tzinfo=UTC)
LONGEST_CRON = 1000


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
        return self.is_daily and len(self.hours) == 24 and even_step(self.minutes, 60) is not None


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
            raise ValueError(f"{self.name} {shown(item)} has step 0; a step is 1 or more")
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
            raise ValueError(f"{self.name} range {shown(item)} runs backwards; put the smaller value first")
        return low, high

    def _value(self, text: str) -> int:
        value = self.names.get(text.lower())
        if value is None and not text.isdigit():
            raise ValueError(self._not_understood(text))
        value = int(text) if value is None else value
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.name} {shown(value)} is out of range {span(self.low, self.high)}")
        return value

    def _not_understood(self, text: str) -> str:
        verdict = "supported" if _QUARTZ.fullmatch(text) else "understood"
        names = f" or {listed(list(self.names))}" if self.names else ""
        values = f"{span(self.low, self.high)}{names}"
        return f"{self.name} {shown(text)} is not {verdict}; allowed: {values}, *, a-b, */n, a-b/n and a,b"


_ITEM = re.compile(r"(?:\*|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)
_QUARTZ = re.compile(r"\?|\d*[LW]+\d*|\w+#\d+|[HR]\b.*", re.ASCII | re.IGNORECASE)
_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name[:3].lower(): number for number, name in enumerate(MONTHS, 1)}),
    _Field("day of week", 0, 7, {name[:3].lower(): number % 7 for number, name in enumerate(WEEKDAYS, 1)}),
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
def calendar_of(expression: str) -> Calendar:
    try:
        fields = _split(expression)
        plain = " ".join(field.plain(text) for field, text in zip(_FIELDS, fields, strict=True))
        expanded, _ = croniter.expand(plain)
    except ValueError as error:
        raise SpecError("cron", f"{error} (in {shown(expression)})") from error
    calendar = _compile(fields, expanded)
    if calendar.first(FIRST.replace(tzinfo=None)) is None:
        raise SpecError("cron", f"{shown(expression)} never matches: no month it allows has such a day")
    return calendar


def _split(expression: str) -> list[str]:
    if len(expression) > LONGEST_CRON:
        raise ValueError(f"{len(expression):,} characters are too many; at most {LONGEST_CRON:,}")
    if not expression.isascii():
        raise ValueError("only ASCII characters are allowed")
    if expression.lower() == "@reboot":
        raise ValueError("@reboot is not supported: a schedule does not belong to one machine's start")
    if expression.startswith("@") and expression.lower() not in _SHORTHANDS:
        raise ValueError(f"{shown(expression)} is not known; allowed: {listed(list(_SHORTHANDS))}")
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


def notes_on(expression: str) -> Iterator[str]:
    calendar, fields = calendar_of(expression), _split(expression)
    for field, text in zip(_FIELDS, fields, strict=True):
        for item in text.split(","):
            if "/" in item and int(item.partition("/")[2]) > field.high - field.low:
                yield f"{field.name} {item} steps past {field.high}: only its first value matches"
    if calendar.either_day:
        yield f"{expression} gives both day of month and day of week: a day that matches either is enough"
