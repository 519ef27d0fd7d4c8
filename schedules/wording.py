"""How specs speak: sentences that describe them, and complaints about them."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from .cron import Calendar
    from .spec import Interval

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = {"day": 86400, "hour": 3600, "minute": 60, "second": 1}


class SpecError(ValueError):
    """Says which part of a spec is wrong, and what is allowed there."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def calendar_words(calendar: Calendar) -> str:
    time, days = _time_words(calendar), _day_words(calendar)
    return f"{time} {days or ('every day' if time.startswith('at ') and ':' in time else '')}".rstrip()


def _time_words(calendar: Calendar) -> str:
    hours, minutes = calendar.hours, calendar.minutes
    span = f"from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[-1]:02}"
    minute_step, hour_step = even_step(minutes, 60), even_step(hours, 24)
    if minute_step and _is_run(hours):
        return f"every {_each(minute_step, 'minute')}" + ("" if hour_step == 1 else f" {span}")
    if len(minutes) == 1 and hour_step and len(hours) > 3 and (minutes[0] == 0 or hour_step > 1):
        return f"every {_each(hour_step, 'hour')}" + (f" from 00:{minutes[0]:02}" if minutes[0] else "")
    if len(minutes) == 1 and hour_step is None and _is_long_run(hours):
        return f"every hour {span}"
    if len(hours) * len(minutes) <= 6:
        return f"at {listed([f'{hour:02}:{minute:02}' for hour in hours for minute in minutes])}"
    past = "every hour" if hour_step == 1 else f"{'hour' if len(hours) == 1 else 'hours'} {_numbers(hours)}"
    return f"at {'minute' if len(minutes) == 1 else 'minutes'} {_numbers(minutes)} past {past}"


def _day_words(calendar: Calendar) -> str:
    months = "" if len(calendar.months) == 12 else listed(_runs(calendar.months, MONTHS, first=1))
    within = f" {'from' if _is_long_run(calendar.months) else 'in'} {months}" if months else ""
    weekdays = _weekday_words(calendar.weekdays)
    if len(calendar.days) == 31 and not calendar.either_day:
        return f"{weekdays}{within}".lstrip()
    days = f"on {_dates(calendar.days)} of {months or 'the month'}"
    if calendar.either_day:
        return f"{days} or {weekdays or 'on any day'}{within}"
    if not weekdays:
        return days
    return f"{days} if that is {listed([WEEKDAYS[day] for day in calendar.weekdays], last='or')}"


def _weekday_words(weekdays: tuple[int, ...]) -> str:
    known = {(0, 1, 2, 3, 4): "on weekdays", (5, 6): "at weekends", (0, 1, 2, 3, 4, 5, 6): ""}
    preposition = "from" if _is_long_run(weekdays) else "on"
    return known.get(weekdays, f"{preposition} {listed(_runs(weekdays, WEEKDAYS))}")


def _dates(days: Sequence[int]) -> str:
    step = days[1] - days[0] if len(days) > 4 else 1
    if step > 1 and list(days) == list(range(days[0], days[-1] + 1, step)):
        return f"every {_ordinal(step)} day from the {_ordinal(days[0])} to the {_ordinal(days[-1])}"
    return f"the {listed(_runs(days, [_ordinal(day) for day in range(1, 32)], first=1))}"


def interval_words(interval: Interval) -> str:
    counts = [count for count in _parts(interval.seconds) if count[0]]
    every = _each(*counts[0]) if len(counts) == 1 else duration_words(interval.seconds)
    return f"every {every}" + (f", offset by {duration_words(interval.offset)}" if interval.offset else "")


def moment_words(local: datetime) -> str:
    time = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    return f"at {time} on {local.day} {MONTHS[local.month - 1]} {local.year}"


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
    return listed(_runs(values, [str(value) for value in range(60)]))


def listed(words: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _each(count: int, noun: str) -> str:
    return noun if count == 1 else counted(count, noun)


def _ordinal(number: int) -> str:
    suffix = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def span(low: object, high: object) -> str:
    return f"{low}\N{EN DASH}{high}"


def shown(value: object) -> str:
    """Show a refused value in a message, whatever its size and content."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:60]}…")
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"
    if value is None or isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
