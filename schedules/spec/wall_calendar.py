"""Calendars of wall time: dates that match fields, combined with times of day.

Wall time is what a clock on the wall shows, counted in seconds from 1970-01-01 00:00. Days are counted from
the same date.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

from .fields import FIRST_YEAR, LAST_OF_MONTH, LAST_YEAR, Values
from .wording import even_step

FIRST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
LAST = datetime(LAST_YEAR, 12, 31, 23, 59, 59, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = 86_400
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_LAST_MONTH = LAST_YEAR * 12 + 11


class TimesOfDay(Protocol):
    """Times of day, in seconds from midnight."""

    def first(self, second: int) -> int | None:
        """Return the earliest time at or after `second`."""

    def blocks(self, start: int, low: int, high: int) -> Iterator[Iterable[int]]:
        """Yield the times of the day that begins at `start`, from `low` to `high` inclusive, in blocks."""


@dataclass(frozen=True)
class Calendar:
    days: Days
    times: TimesOfDay
    is_wildcard: bool

    def first(self, wall: int) -> int | None:
        """Return the first match at or after a wall time."""
        today, second = divmod(wall, DAY)
        day = self.days.first(today)
        if day == today:
            if (time := self.times.first(second)) is not None:
                return today * DAY + time
            day = self.days.first(today + 1)
        if day is None:
            return None
        time = self.times.first(0)
        assert time is not None
        return day * DAY + time

    def blocks(self, low: int, high: int, offset: int) -> Iterator[Iterable[int]]:
        """Yield the matching wall times from `low` to `high`, each reduced by `offset`, in blocks."""
        for day in self.days.between(low // DAY, high // DAY):
            yield from self.times.blocks(day * DAY - offset, low - offset, high - offset)

    def matches(self, wall: int) -> bool:
        day, second = divmod(wall, DAY)
        return self.times.first(second) == second and self.days.matches(day)

    def end_of_match(self, wall: int) -> int:
        """Return the end of a period that starts at the match `wall` and in which every time matches."""
        day, second = divmod(wall, DAY)
        assert isinstance(self.times, Product)
        if self.times.is_all_day:
            return self.days.end_of_run(day) * DAY
        return day * DAY + self.times.end_of_run(second)


@dataclass(frozen=True)
class Product:
    """Every combination of these hours, minutes and seconds."""

    hours: tuple[int, ...]
    minutes: tuple[int, ...]
    seconds: tuple[int, ...] = (0,)

    @cached_property
    def _in_hour(self) -> tuple[int, ...]:
        return _seconds_in_hour(self.minutes, self.seconds)

    def first(self, second: int) -> int | None:
        hour, rest = divmod(second, 3600)
        place = bisect_left(self.hours, hour)
        if place == len(self.hours):
            return None
        if self.hours[place] == hour:
            if rest <= self._in_hour[-1]:
                return hour * 3600 + self._in_hour[bisect_left(self._in_hour, rest)]
            place += 1
            if place == len(self.hours):
                return None
        return self.hours[place] * 3600 + self._in_hour[0]

    def blocks(self, start: int, low: int, high: int) -> Iterator[Iterable[int]]:
        in_hour = self._in_hour
        for hour in islice(self.hours, bisect_left(self.hours, (low - start) // 3600), None):
            base = start + hour * 3600
            if base > high:
                return
            if low <= base and base + 3599 <= high:
                yield map(base.__add__, in_hour)
            else:
                places = bisect_left(in_hour, low - base), bisect_right(in_hour, high - base)
                yield map(base.__add__, islice(in_hour, *places))

    @property
    def is_all_day(self) -> bool:
        return len(self.hours) == 24 and len(self._in_hour) == 3600

    def end_of_run(self, second: int) -> int:
        length = 3600 if len(self._in_hour) == 3600 else 60 if len(self.seconds) == 60 else 1
        return (second // length + 1) * length


@lru_cache(maxsize=1024)
def _seconds_in_hour(minutes: tuple[int, ...], seconds: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(minute * 60 + second for minute in minutes for second in seconds)


class Listed(NamedTuple):
    """A sorted list of times of day."""

    times: Sequence[int]

    def first(self, second: int) -> int | None:
        place = bisect_left(self.times, second)
        return self.times[place] if place < len(self.times) else None

    def blocks(self, start: int, low: int, high: int) -> Iterator[Iterable[int]]:
        first, last = bisect_left(self.times, low - start), bisect_right(self.times, high - start)
        yield map(start.__add__, self.times[first:last])


EVERY_DAY_OF_MONTH = tuple(range(1, 32))
EVERY_MONTH = tuple(range(1, 13))
EVERY_WEEKDAY = tuple(range(7))


@dataclass(frozen=True)
class Days:
    """Dates that match sorted field values; weekdays count from Monday = 0. No years means all years."""

    days: tuple[int, ...] = EVERY_DAY_OF_MONTH
    months: tuple[int, ...] = EVERY_MONTH
    weekdays: tuple[int, ...] = EVERY_WEEKDAY
    years: tuple[int, ...] = ()
    last_day: bool = False
    nth: tuple[tuple[int, int], ...] = ()
    either: bool = False

    def first(self, day: int) -> int | None:
        """Return the first matching day at or after `day`."""
        return next(self.between(day, _LAST_DAY), None)

    def between(self, low: int, high: int) -> Iterator[int]:
        if self.is_daily:
            yield from range(low, min(high, _LAST_DAY) + 1)
            return
        for month in self._months(_month_of(low), _month_of(min(high, _LAST_DAY))):
            first_day, shape = _month(month)
            days = self._days_of(shape)
            skipped = bisect_left(days, low - first_day + 1) if low > first_day else 0
            for day in islice(days, skipped, None):
                if first_day + day - 1 > high:
                    return
                yield first_day + day - 1

    def matches(self, day: int) -> bool:
        month = _month_of(day)
        if not self._has_month(month):
            return False
        first_day, shape = _month(month)
        return day - first_day + 1 in self._days_of(shape)

    def _months(self, low: int, high: int) -> Iterator[int]:
        """Yield the matching months from `low` to `high`; months are counted from year 0."""
        for year in self._years(low // 12, high // 12):
            for month in self.months:
                if low < year * 12 + month <= high + 1:
                    yield year * 12 + month - 1

    def _years(self, low: int, high: int) -> Sequence[int]:
        if not self.years:
            return range(low, high + 1)
        return self.years[bisect_left(self.years, low) : bisect_right(self.years, high)]

    def end_of_run(self, day: int) -> int:
        """Return the end of a period that starts at the match `day` and in which every day matches."""
        month = _month_of(day)
        while month <= _LAST_MONTH and self._is_whole(month):
            month += 1
        first_day, _ = _month(month)
        return max(day + 1, first_day)

    def _is_whole(self, month: int) -> bool:
        _, shape = _month(month)
        return self._has_month(month) and len(self._days_of(shape)) == shape[1]

    def _has_month(self, month: int) -> bool:
        year, number = divmod(month, 12)
        return number + 1 in self.months and (not self.years or year in self.years)

    @cached_property
    def _known(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def _days_of(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Return the matching days of a month; `shape` has its first weekday and its length."""
        days = self._known.get(shape)
        if days is None:
            days = self._known[shape] = self._matching(*shape)
        return days

    def _matching(self, first_weekday: int, length: int) -> tuple[int, ...]:
        enough = any if self.either else all
        return tuple(
            day
            for day in range(1, length + 1)
            if enough((self._has_date(day, length), self._has_weekday(day, first_weekday, length)))
        )

    def _has_date(self, day: int, length: int) -> bool:
        return day in self.days or (self.last_day and day == length)

    def _has_weekday(self, day: int, first_weekday: int, length: int) -> bool:
        weekday = (first_weekday + day - 1) % 7
        if weekday in self.weekdays or (weekday, (day - 1) // 7 + 1) in self.nth:
            return True
        return day + 7 > length and (weekday, LAST_OF_MONTH) in self.nth

    @property
    def leaves_out_months(self) -> bool:
        """Return whether any of the chosen months can be too short to have any of the chosen days."""
        if self.last_day or not self.days:
            return False
        return any(_SHORTEST_MONTHS[month - 1] < self.days[0] for month in self.months)

    @cached_property
    def is_daily(self) -> bool:
        every_date, every_weekday = len(self.days) == 31, len(self.weekdays) == 7
        enough = any if self.either else all
        return enough((every_date, every_weekday)) and len(self.months) == 12 and not self.years


_SHORTEST_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST_DAY = LAST.date().toordinal() - EPOCH_ORDINAL


def _month_of(day: int) -> int:
    """Return the month of a day, counted from year 0."""
    current = date.fromordinal(day + EPOCH_ORDINAL)
    return current.year * 12 + current.month - 1


@lru_cache(maxsize=4096)
def _month(month: int) -> tuple[int, tuple[int, int]]:
    """Return the first day of a month, and a pair: the weekday of this day and the length of the month.

    The month is counted from year 0, the day from 1970-01-01.
    """
    first = date(month // 12, month % 12 + 1, 1).toordinal()
    month += 1
    return first - EPOCH_ORDINAL, ((first + 6) % 7, date(month // 12, month % 12 + 1, 1).toordinal() - first)


def calendar_of_fields(values: Sequence[Values], *, either_day: bool) -> Calendar:
    """Compile the values of the fields, from second to year, into a calendar.

    With `either_day`, a day matches by its date or its weekday; otherwise, both must match.
    """
    seconds, minutes, hours, days, months, weekdays, years = values
    return Calendar(
        days=Days(
            days=days.numbers,
            months=months.numbers,
            weekdays=weekdays.weekdays,
            years=() if len(years.numbers) == LAST_YEAR - FIRST_YEAR + 1 else years.numbers,
            last_day=days.last_day,
            nth=weekdays.nth_weekdays,
            either=either_day,
        ),
        times=Product(hours.numbers, minutes.numbers, seconds.numbers),
        is_wildcard=minutes.is_starred or hours.is_starred,
    )


def is_steady(calendar: Calendar) -> bool:
    """Return whether a calendar matches the same instants in all zones with whole-hour offsets."""
    times = calendar.times
    if not isinstance(times, Product) or len(times.hours) < 24 or not calendar.days.is_daily:
        return False
    whole_minutes = len(times.minutes) == 60 and even_step(times.seconds, 60) is not None
    return whole_minutes or (times.seconds == (0,) and even_step(times.minutes, 60) is not None)
