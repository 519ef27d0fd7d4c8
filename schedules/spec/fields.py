"""The fields of cron strings and structured calendars, which turn text such as 1-20/3 into numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from .wording import MONTHS, WEEKDAYS, listed, shown, span

FIRST_YEAR, LAST_YEAR = 1970, 2999
LAST_OF_MONTH = -1


class Values(NamedTuple):
    """The values that a field allows."""

    text: str
    numbers: tuple[int, ...]
    last_day: bool = False
    nth: tuple[tuple[int, int], ...] = ()

    @property
    def is_starred(self) -> bool:
        return self.text.startswith("*")

    @property
    def weekdays(self) -> tuple[int, ...]:
        """Return the weekdays, counted from Monday = 0 as in Python; in the text, Sunday is 0 or 7."""
        return tuple(sorted({(number - 1) % 7 for number in self.numbers}))

    @property
    def nth_weekdays(self) -> tuple[tuple[int, int], ...]:
        if len(self.weekdays) == 7:
            return ()
        return tuple(sorted(((number - 1) % 7, count) for number, count in self.nth))


class Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def values(self, text: str) -> Values:
        numbers: set[int] = set()
        nth: set[tuple[int, int]] = set()
        items = text.split(",")
        for item in items:
            if self._is_last_day(item):
                continue
            days, count = self._nth(item) if self is DAY_OF_WEEK else ((), 0)
            nth.update((day, count) for day in days)
            numbers.update(() if days else self._range(item, text))
        last_day = any(map(self._is_last_day, items))
        return Values(text, tuple(sorted(numbers)), last_day, tuple(sorted(nth)))

    def steps_past_the_end(self, text: str) -> Iterator[str]:
        for item in text.split(","):
            parts = _ITEM.fullmatch(item)
            if parts and parts["step"] and int(parts["step"]) > self.high - self.low:
                yield f"{self.name} {item} steps past {self.high}: only the first value matches"

    def _range(self, item: str, text: str) -> range:
        parts = _ITEM.fullmatch(item)
        if parts is None:
            raise ValueError(self._not_understood(item or text))
        step = int(parts["step"] or 1)
        if step == 0:
            raise ValueError(f"{self.name} {shown(item)} has step 0; a step must be 1 or more")
        low, high = self._bounds(parts, item)
        return range(low, high + 1, step)

    def _bounds(self, parts: re.Match[str], item: str) -> tuple[int, int]:
        if parts["low"] is None:
            # Sunday is both 0 and 7; a step counts the days of one week.
            return self.low, 6 if self is DAY_OF_WEEK else self.high
        low = self._value(parts["low"], item)
        if parts["high"] is None:
            return low, self.high if parts["step"] else low
        high = self._value(parts["high"], item)
        if low and self is DAY_OF_WEEK and parts["high"][0] in "sS" and high == 0:
            high = 7
        if low > high:
            raise ValueError(f"{self.name} range {shown(item)} runs backwards; put the smaller value first")
        return low, high

    def _value(self, text: str, item: str) -> int:
        if (value := self._number_of_name(text.lower())) is None:
            if not text.isdigit():
                raise ValueError(self._not_understood(item))
            value = int(text)
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.name} {shown(value)} is outside the range {span(self.low, self.high)}")
        return value

    def _number_of_name(self, text: str) -> int | None:
        if len(text) < 3 or not text.isalpha():
            return None
        for number, name in enumerate(self.names, self.low):
            if name.lower().startswith(text):
                return number
        return None

    def _is_last_day(self, item: str) -> bool:
        return self is DAY_OF_MONTH and item in ("L", "l")

    def _nth(self, item: str) -> tuple[tuple[int, ...], int]:
        """Return the weekdays of an item such as fri#2, mon-wed#1 or L5, and which ones of a month are meant.

        For fri#2, the second Friday, return ((5,), 2); for L5, the last Friday, ((5,), LAST_OF_MONTH). For an
        item of another form, return ((), 0).
        """
        if parts := _LAST_WEEKDAY.fullmatch(item):
            return (self._value(parts["after"] or parts["before"], item) % 7,), LAST_OF_MONTH
        days, hash_sign, count = item.partition("#")
        if not hash_sign:
            return (), 0
        if count not in ("1", "2", "3", "4", "5"):
            allowed = "fri#1 to fri#5, and Lfri for the last Friday"
            raise ValueError(f"{self.name} {shown(item)} is not understood; allowed: {allowed}")
        return tuple(sorted({day % 7 for day in self._range(days, item)})), int(count)

    def _not_understood(self, text: str) -> str:
        verdict = "supported" if _QUARTZ.fullmatch(text) else "understood"
        names = f" or {listed([name[:3].lower() for name in self.names])}" if self.names else ""
        special = {DAY_OF_MONTH: ", L", DAY_OF_WEEK: ", fri#2, L5"}.get(self, "")
        values = f"{span(self.low, self.high)}{names}"
        return (
            f"{self.name} {shown(text)} is not {verdict}; "
            f"allowed: {values}, *, a-b, */n, a-b/n{special} and a,b"
        )


_ITEM = re.compile(r"(?:\*|(?P<low>\w+)(?:-(?P<high>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)
_LAST_WEEKDAY = re.compile(r"L(?P<after>\w+)|(?P<before>\w+)L", re.ASCII | re.IGNORECASE)
_QUARTZ = re.compile(r"\?|\d*[LW]+\d*|L-\d+|\w+#\w+|[HR]\b.*", re.ASCII | re.IGNORECASE)

SECOND = Field("second", 0, 59)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY_OF_MONTH = Field("day of month", 1, 31)
MONTH = Field("month", 1, 12, MONTHS)
DAY_OF_WEEK = Field("day of week", 0, 7, (WEEKDAYS[6], *WEEKDAYS[:6]))
YEAR = Field("year", FIRST_YEAR, LAST_YEAR)
FIELDS = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK, YEAR)
