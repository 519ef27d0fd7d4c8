"""The exclusions of a spec, compiled for fast checks of single times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain

from .any_calendar import AnyCalendar
from .exclusions import Between, Dates, Exclusion, Matching, Shared, Span, flat, places
from .public_holidays import PublicHolidays
from .wall_calendar import DAY


class Exclusions:
    """All exclusions of a spec; each check takes a wall time and its instant."""

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
        """Return a wall time until which every time from this one on is excluded; None if this one is not."""
        for part in self._parts:
            if (end := part.end(wall, instant)) is not None:
                return end
        return None

    def sure_end(self, instant: int) -> int | None:
        """Return an instant until which everything is excluded in every time zone; None if unknown."""
        ends = [end for part in self._parts if (end := part.sure_end(instant)) is not None]
        return max(ends, default=None)

    def reason(self, wall: int, instant: int) -> str:
        """Return why a time is excluded; empty if it is not excluded."""
        for item in self._items:
            calendar, items = (item.name, item.items) if isinstance(item, Shared) else ("", (item,))
            for each in items:
                if each.leaves_out(wall, instant):
                    return each.reason(wall, calendar)
        return ""


@lru_cache(maxsize=256)
def _together(calendars: tuple[Shared, ...]) -> _Compiled:
    """Compile shared calendars once for all schedules that use them."""
    return _Compiled(flat(calendars))


class _Compiled:
    """Exclusions grouped by how they are checked."""

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
        # The first one is enough, because the caller asks again from there.
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
