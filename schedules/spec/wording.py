"""Words for times, durations and lists, and the error for invalid specs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date, datetime

    from .intervals import Interval

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}


class SpecError(ValueError):
    """The error for an invalid spec. It names the field, and says what is wrong or what is allowed."""

    def __init__(self, field: str, message: str, *, place: int | None = None) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message
        self.place = place
        """The index of the item in the field's list, counted from 0."""

    @property
    def path(self) -> tuple[str | int, ...]:
        places = () if self.place is None else (self.place,)
        return (self.field, *places) if self.field else ()

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def interval_words(interval: Interval) -> str:
    offset = f", offset by {duration_words(interval.offset)}" if interval.offset else ""
    return every_words(interval.seconds) + offset


def every_words(seconds: int) -> str:
    counts = [count for count in _parts(seconds) if count[0]]
    return f"every {each(*counts[0]) if len(counts) == 1 else duration_words(seconds)}"


def once_words(local: datetime) -> str:
    return f"once, at {clock_words(local)} on {date_words(local)}"


def moment_words(local: datetime) -> str:
    return f"{date_words(local)} {clock_words(local)}"


def date_words(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def clock_words(local: datetime) -> str:
    return f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"


def time_of_day(seconds: int) -> str:
    hour, minute, second = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")


def duration(seconds: int) -> str:
    return "".join(f"{count}{unit[0]}" for count, unit in _parts(seconds) if count) or "0s"


def duration_words(seconds: int) -> str:
    return " ".join(counted(count, unit) for count, unit in _parts(seconds) if count)


def _parts(seconds: int) -> list[tuple[int, str]]:
    parts = []
    for unit, length in UNITS.items():
        parts.append((seconds // length, unit))
        seconds %= length
    return parts


def even_step(values: Sequence[int], size: int) -> int | None:
    """Return the step if the values run evenly from 0 up to `size`, such as 0, 15, 30, 45; otherwise None."""
    step = size // len(values)
    return step if len(values) > 1 and list(values) == list(range(0, size, step)) else None


def listed(words: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def each(count: int, noun: str) -> str:
    return noun if count == 1 else counted(count, noun)


def span(low: object, high: object) -> str:
    return f"{low}\N{EN DASH}{high}"


def shown(value: object) -> str:
    """Return a short form of a refused value for error messages, whatever its size and content."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:60]}…")
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number with more than 18 digits"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
