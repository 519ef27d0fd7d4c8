"""The nominal times of a spec, in order: its rules, read in a time zone, without the excluded times.

Instants are seconds since the epoch. Between two clock changes, wall time and instants differ by a constant.
A clock change is handled at the start of the stretch that follows it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from .compiled_exclusions import Exclusions
from .wall_calendar import DAY, Calendar
from .wording import SpecError
from .zones import LONGEST_SHIFTED_GAP, Stretch, stretch_at

CANDIDATES = 20_000
# The effort of a whole preview, which takes about half a second.
EFFORT = 5 * CANDIDATES
_RULES_PER_COST = 25
_YEAR = 366 * DAY
# The holidays of a year are slow to compute. A search gives up after fifty years of exclusions, or after ten
# years if there are many places.
_YEAR_OF_HOLIDAYS = CANDIDATES // 50
_MOST_PER_YEAR = CANDIDATES // 10
_WORTH_A_JUMP = 30


class Rule(Protocol):
    def blocks(self, stretch: Stretch, low: int, high: int) -> Iterator[Iterable[int]]:
        """Yield the instants of a stretch from `low` to `high` inclusive, in order, in blocks."""

    def ahead(self, floor: int) -> int | None:
        """Return a lower bound of the next instant at or after `floor`; None if there is no such instant."""


class Timeline(NamedTuple):
    zone: ZoneInfo
    rules: tuple[Rule, ...]
    exclusions: Exclusions

    def walk(self, floor: int, until: int, effort: Effort | None = None) -> Iterator[int]:
        """Yield the nominal times between two instants, inclusive."""
        budget = _Budget(self.exclusions, len(self.rules), effort)
        while floor <= until:
            stretch = stretch_at(floor, self.zone)
            if floor == stretch.start and self.is_moved_to(stretch):
                budget.keep(floor)
                yield floor
                floor += 1
            high = min(until, stretch.end - 1)
            if self.exclusions:
                yield from self._kept(stretch, floor, high, budget)
            else:
                yield from self._union(stretch, floor, high)
            ahead = self._ahead(stretch.end)
            if ahead is None:
                return
            floor = ahead

    def _union(self, stretch: Stretch, low: int, high: int) -> Iterator[int]:
        walks = [chain.from_iterable(rule.blocks(stretch, low, high)) for rule in self.rules]
        if len(walks) == 1:
            return walks[0]
        return (instant for instant, _ in groupby(heapq.merge(*walks)))

    def _kept(self, stretch: Stretch, low: int, high: int, budget: _Budget) -> Iterator[int]:
        while low <= high:
            passed = 0
            for instant in self._union(stretch, low, high):
                if instant < low:
                    passed += 1
                    if passed == _WORTH_A_JUMP:
                        break
                    continue
                passed = 0
                end = self.exclusions.end(instant + stretch.offset, instant)
                if end is None:
                    budget.keep(instant)
                    yield instant
                else:
                    budget.charge(instant)
                    low = end - stretch.offset
            else:
                return

    def is_moved_to(self, stretch: Stretch) -> bool:
        """Return whether times that the clocks skip before `stretch` are moved to the start of `stretch`."""
        gap = stretch.offset - stretch.before
        if not 0 < gap <= LONGEST_SHIFTED_GAP.total_seconds():
            return False
        return next(self.swallowed(stretch), None) is not None

    def swallowed(self, stretch: Stretch) -> Iterator[int]:
        """Yield the wall times that rules have in the gap before `stretch`, except excluded times.

        Rules with `each_pass` are left out, because their times in a gap are not moved.
        """
        low, high = stretch.start + stretch.before, stretch.start + stretch.offset - 1
        for rule in self.rules:
            if isinstance(rule, OnTheClock) and not rule.each_pass:
                for wall in chain.from_iterable(rule.calendar.blocks(low, high, 0)):
                    if self.exclusions.end(wall, stretch.start) is None:
                        yield wall

    def _ahead(self, floor: int) -> int | None:
        """Return a lower bound of the next nominal time at or after `floor`; None if no time follows.

        This lets a search skip long gaps and exclusions.
        """
        while True:
            instants = [instant for rule in self.rules if (instant := rule.ahead(floor)) is not None]
            if not instants:
                return None
            floor = max(floor, min(instants))
            end = self.exclusions.sure_end(floor)
            if end is None:
                return floor
            floor = end


class OnTheClock(NamedTuple):
    """A calendar of wall times. With `each_pass`, a wall time that clocks show twice is used both times."""

    calendar: Calendar
    each_pass: bool

    def blocks(self, stretch: Stretch, low: int, high: int) -> Iterator[Iterable[int]]:
        if not self.each_pass and stretch.before > stretch.offset:
            # The clocks went back: leave out the wall times that now occur for the second time.
            low = max(low, stretch.start + stretch.before - stretch.offset)
        return self.calendar.blocks(low + stretch.offset, high + stretch.offset, stretch.offset)

    def ahead(self, floor: int) -> int | None:
        wall = self.calendar.first(floor - DAY)
        return None if wall is None else wall - DAY


class Moments(NamedTuple):
    instants: tuple[int, ...]

    def blocks(self, stretch: Stretch, low: int, high: int) -> Iterator[Iterable[int]]:
        yield self.instants[bisect_left(self.instants, low) : bisect_right(self.instants, high)]

    def ahead(self, floor: int) -> int | None:
        place = bisect_left(self.instants, floor)
        return self.instants[place] if place < len(self.instants) else None


class TooMuch(SpecError):
    """The error when the effort of a preview is used up. The times found before remain valid."""


class Effort:
    """The limit on the work for one preview; it does not grow with the number of times to show.

    Each excluded time that is checked uses up some of the effort, and more if there are many rules. Each year
    of public holidays also uses up some.
    """

    def __init__(self) -> None:
        self.left = EFFORT

    @property
    def is_spent(self) -> bool:
        return self.left <= 0

    @property
    def used(self) -> int:
        return EFFORT - self.left

    def charge(self, cost: int) -> None:
        self.left -= cost
        if self.is_spent:
            raise TooMuch("exclude", TOO_MUCH)


TOO_MUCH = (
    f"not all of the next times are shown, because more than {EFFORT:,} excluded times would have to be "
    "checked first; use rules that match less often, or exclude fewer times"
)


class _Budget:
    """The limit on a search that finds only excluded times, so that no spec can block a tick."""

    def __init__(self, exclusions: Exclusions, rules: int, effort: Effort | None) -> None:
        tens = 1 + exclusions.places // 10
        self._per_year = min(_YEAR_OF_HOLIDAYS * tens, _MOST_PER_YEAR) if exclusions.places else 0
        self._cost, self._effort = 1 + rules // _RULES_PER_COST, effort
        self._known_year = -1
        self._refill()

    def _refill(self) -> None:
        self._left, self._year = CANDIDATES, -1

    def keep(self, instant: int) -> None:
        """Note that a time was found; the search for the next time starts with the full limit."""
        self._refill()
        self._spend(instant, 0)

    def charge(self, instant: int) -> None:
        """Count an excluded time; raise SpecError if the limit is reached."""
        self._left -= 1
        if self._per_year and instant // _YEAR != self._year:
            self._year = instant // _YEAR
            self._left -= self._per_year
        if self._left <= 0:
            raise SpecError(
                "exclude",
                "no scheduled times are left: all that were checked are excluded; exclude fewer times",
            )
        self._spend(instant, self._cost)

    def _spend(self, instant: int, cost: int) -> None:
        if self._effort is None:
            return
        if self._per_year and instant // _YEAR != self._known_year:
            self._known_year = instant // _YEAR
            cost += self._per_year
        self._effort.charge(cost)
