"""The exclusions of a spec, compiled for fast checks of single times."""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import date
from functools import lru_cache
from itertools import chain

from .exclusions import Between, Dates, Exclusion, Matching, Shared, Span, flat, places
from .fields import LAST_OF_MONTH
from .public_holidays import PublicHolidays
from .wall_calendar import DAY, EPOCH_ORDINAL, Calendar, Days, Product


class Exclusions:
    """All exclusions of a spec. Wall times and instants are in seconds since the epoch."""

    def __init__(self, items: Sequence[Exclusion]) -> None:
        self._items = items
        own = [item for item in items if not isinstance(item, Shared)]
        shared = tuple(item for item in items if isinstance(item, Shared))
        self._parts: list[_Compiled] = [_Compiled(own)] if own else []
        if shared:
            self._parts.append(_together(shared))
        self.places = len(places(flat(items)))

    def __bool__(self) -> bool:
        return bool(self._items)

    def end(self, wall: int, instant: int) -> int | None:
        """Return the wall time when the exclusion of this time ends; None if this time is not excluded."""
        for part in self._parts:
            if (end := part.end(wall, instant)) is not None:
                return end
        return None

    def sure_end(self, instant: int) -> int | None:
        """Return until when all times from `instant` on are excluded in every time zone; None if unknown."""
        ends = [end for part in self._parts if (end := part.sure_end(instant)) is not None]
        return max(ends, default=None)

    def reason(self, wall: int, instant: int) -> str:
        """Return why a time is excluded, or an empty string if the time is not excluded."""
        for item in self._items:
            calendar, items = (item.name, item.items) if isinstance(item, Shared) else ("", (item,))
            for each in items:
                if each.leaves_out(wall, instant):
                    return each.reason(wall, calendar)
        return ""


@lru_cache(maxsize=256)
def _together(calendars: tuple[Shared, ...]) -> _Compiled:
    """Compile shared calendars; specs that use the same calendars share the result."""
    return _Compiled(flat(calendars))


class _Compiled:
    """Exclusions, grouped by the way in which times are checked against them."""

    def __init__(self, items: Sequence[Exclusion]) -> None:
        betweens = [item for item in items if isinstance(item, Between)]
        dates = [item.span for item in items if isinstance(item, Dates)]
        self.walls = _Spans([*dates, *(item.span for item in betweens if item.is_on_the_clock)])
        self.instants = _Spans(item.span for item in betweens if not item.is_on_the_clock)
        self.holidays = PublicHolidays(places(items))
        self.calendars = AnyCalendar(item.structured.calendar for item in items if isinstance(item, Matching))

    def end(self, wall: int, instant: int) -> int | None:
        if (end := self.walls.end(wall)) is not None:
            return end
        if (end := self.instants.end(instant)) is not None:
            return end - instant + wall
        if self.holidays.has(wall // DAY):
            return (wall // DAY + 1) * DAY
        for calendar in self.calendars.matching(wall):
            return calendar.end_of_match(wall)
        return None

    def sure_end(self, instant: int) -> int | None:
        if (end := self.instants.end(instant)) is not None:
            return end
        # Every clock is less than a day ahead of UTC or behind it.
        wall = instant - DAY
        end = self.walls.end(wall)
        matches = (each.end_of_match(wall) for each in self.calendars.matching(wall))
        # The first end is enough, because the caller asks again from there.
        ends = chain(() if end is None else (end,), matches)
        return next((end - DAY for end in ends if end > instant + DAY), None)


class _Spans:
    """Merged and sorted spans, for a binary search."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def end(self, second: int) -> int | None:
        place = bisect_right(self._starts, second) - 1
        return self._ends[place] if place >= 0 and second < self._ends[place] else None


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
    """Return a Counter from value to a number, in which bit n is set if calendar n allows the value.

    `allowed` has the values that each calendar allows. For all other values, the Counter returns 0.
    """
    alike: Counter[tuple[Hashable, ...]] = Counter()
    for place, values in enumerate(allowed):
        alike[values] |= 1 << place
    bits: Counter[Hashable] = Counter()
    for values, them in alike.items():
        for value in values:
            bits[value] |= them
    return bits
