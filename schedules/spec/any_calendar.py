"""Matches many calendars at once with bit sets: a thousand calendars take hardly longer than one."""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from datetime import date

from .fields import LAST_OF_MONTH
from .wall_calendar import DAY, EPOCH_ORDINAL, Calendar, Days, Product

_ANY_YEAR = 0


class AnyCalendar:
    """A set of structured calendars. A time matches the set if it matches any of the calendars.

    Within a calendar, day of month and day of week must both match.
    """

    def __init__(self, calendars: Iterable[Calendar]) -> None:
        self._calendars = tuple(dict.fromkeys(calendars))
        times = [each.times for each in self._calendars if isinstance(each.times, Product)]
        days = [each.days for each in self._calendars]
        self._hours = _bits(each.hours for each in times)
        self._minutes = _bits(each.minutes for each in times)
        self._seconds = _bits(each.seconds for each in times)
        self._dates = _bits(_dates_of(each) for each in days)
        self._weekdays = _bits((*each.weekdays, *each.nth) for each in days)
        self._months = _bits(each.months for each in days)
        self._years = _bits(each.years or (_ANY_YEAR,) for each in days)

    def matching(self, wall: int) -> Iterator[Calendar]:
        """Yield the calendars that match a wall time, in order."""
        day, second = divmod(wall, DAY)
        bits = self._hours[second // 3600] & self._minutes[second // 60 % 60] & self._seconds[second % 60]
        if bits:
            bits &= self._on(date.fromordinal(day + EPOCH_ORDINAL))
        while bits:
            yield self._calendars[(bits & -bits).bit_length() - 1]
            bits &= bits - 1

    def _on(self, day: date) -> int:
        weekday, left = day.weekday(), monthrange(day.year, day.month)[1] - day.day
        dates = self._dates[day.day] | (self._dates[LAST_OF_MONTH] if left == 0 else 0)
        weekdays = self._weekdays[weekday] | self._weekdays[weekday, (day.day - 1) // 7 + 1]
        if left < 7:
            weekdays |= self._weekdays[weekday, LAST_OF_MONTH]
        return dates & weekdays & self._months[day.month] & (self._years[_ANY_YEAR] | self._years[day.year])


def _dates_of(days: Days) -> tuple[int, ...]:
    return (*days.days, LAST_OF_MONTH) if days.last_day else days.days


def _bits(allowed: Iterable[tuple[Hashable, ...]]) -> Counter[Hashable]:
    """Return, for each value, the bits of the calendars that allow it; a Counter has 0 for other values."""
    alike: Counter[tuple[Hashable, ...]] = Counter()
    for place, values in enumerate(allowed):
        alike[values] |= 1 << place
    bits: Counter[Hashable] = Counter()
    for values, them in alike.items():
        for value in values:
            bits[value] |= them
    return bits
