"""Who works in a company: each day some people are hired, some leave or move, and some come back."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict

from .draws import Draws

# One in so many leavers comes back, after FEWEST_DAYS to MOST_DAYS days.
LEAVERS_PER_RETURN = 10
FEWEST_DAYS, MOST_DAYS = 2, 30


class Turnover:
    """People are numbers, from 0 in the order in which they were first hired. `moves` counts by person."""

    def __init__(self, count: int, seed: int) -> None:
        self.moves: Counter[int] = Counter()
        self._people = array("q", range(count))
        self._hired = count
        self._left = 0
        self._returning: dict[int, list[int]] = defaultdict(list)
        self._draws = Draws(seed, "turnover")
        self._days_away = Draws(seed, "days away")

    def pass_day(self, day: int, *, hires: int, leavers: int, movers: int) -> None:
        """Let those leave and move who were there the day before, and then let others come."""
        chosen = self._choose(day, leavers + movers)
        for person in chosen[leavers:]:
            self.moves[person] += 1
        self._let_go(day, chosen[:leavers])
        self._people.extend(self._returning.pop(day, ()))
        self._people.extend(range(self._hired, self._hired + hires))
        self._hired += hires

    def presence(self) -> bytearray:
        """Return a flag for each person ever hired."""
        flags = bytearray(self._hired)
        for person in self._people:
            flags[person] = True
        return flags

    def _choose(self, day: int, size: int) -> list[int]:
        """Return so many different people, or all if there are fewer, and put these last."""
        people = self._people
        size = min(size, len(people))
        for turn in range(size):
            last = len(people) - 1 - turn
            at = self._draws.below(last + 1, day, turn)
            people[at], people[last] = people[last], people[at]
        return list(reversed(people[len(people) - size :]))

    def _let_go(self, day: int, leavers: list[int]) -> None:
        """Remove people who were put last; note when some of them come back."""
        del self._people[len(self._people) - len(leavers) :]
        for person in leavers:
            self._left += 1
            if self._left % LEAVERS_PER_RETURN == 0:
                away = FEWEST_DAYS + self._days_away.below(MOST_DAYS - FEWEST_DAYS + 1, self._left)
                self._returning[day + away].append(person)
