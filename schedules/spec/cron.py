"""Cron strings: five fields, six with a year, seven with seconds first, or a shorthand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from .fields import FIELDS
from .intervals import Interval, seconds_from
from .shapes import text_of
from .wall_calendar import Calendar, calendar_of_fields
from .wording import SpecError, listed, shown
from .zones import zone_of

# A comment needs a space before it: fri#2 is the second Friday.
_COMMENT = re.compile(r"(?:^|\s)#.*", re.DOTALL)
_ZONE = re.compile(r"(?:CRON_)?TZ=(?P<zone>\S*)\s*(?P<rest>.*)", re.DOTALL)
_EVERY = re.compile(r"@every\s+(?P<every>[^\s/]+)(?:/(?P<offset>\S+))?", re.IGNORECASE)
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class CronString(NamedTuple):
    """A parsed cron string without the comment, and the time zone and interval that it names, if any."""

    expression: str
    time_zone: str = ""
    interval: Interval | None = None

    @classmethod
    def parse(cls, value: object) -> CronString:
        text = " ".join(_COMMENT.sub("", text_of("cron", value)).split())
        time_zone = ""
        if parts := _ZONE.fullmatch(text):
            time_zone, text = _zone(parts["zone"], text), parts["rest"]
        if not text:
            raise SpecError("cron", "the cron string is empty; expected 5 fields, such as 0 9 * * mon-fri")
        if parts := _EVERY.fullmatch(text):
            return cls(text, time_zone, _interval(parts))
        calendar_of(text)
        return cls(text, time_zone)


def _zone(name: str, text: str) -> str:
    try:
        zone_of(name)
    except SpecError as error:
        raise SpecError("cron", f"time zone {error.message} (in {shown(text)})") from error
    return name


def _interval(parts: re.Match[str]) -> Interval:
    try:
        return Interval(seconds_from("cron", parts["every"]), seconds_from("cron", parts["offset"] or 0))
    except SpecError as error:
        raise SpecError("cron", f"{error.message} (in {shown(parts[0])})") from error


@lru_cache(maxsize=16384)
def calendar_of(expression: str) -> Calendar:
    try:
        fields = _split(expression)
        values = [field.values(text) for field, text in zip(FIELDS, fields, strict=True)]
    except ValueError as error:
        raise SpecError("cron", f"{error} (in {shown(expression)})") from error
    calendar = calendar_of_fields(values, either_day=not (values[3].is_starred or values[5].is_starred))
    if calendar.first(0) is None:
        raise SpecError(
            "cron", f"{shown(expression)} never matches any date: the chosen months do not have this day"
        )
    return calendar


def _split(expression: str) -> list[str]:
    """Split a cron string into seven fields, from second to year."""
    if not expression.isascii():
        raise ValueError("only ASCII characters are allowed")
    if expression.lower() == "@reboot":
        raise ValueError("@reboot is not supported: a schedule is not tied to the start of a machine")
    if expression.startswith("@") and expression.lower() not in _SHORTHANDS:
        known = listed([*_SHORTHANDS, "@every 90m"])
        raise ValueError(f"{shown(expression)} is not a known shorthand; allowed: {known}")
    fields = _SHORTHANDS.get(expression.lower(), expression).split()
    if len(fields) not in (5, 6, 7):
        names = ", ".join(field.name for field in FIELDS[1:6])
        more = "a sixth field adds the year at the end, and a seventh adds the seconds at the beginning"
        raise ValueError(f"expected 5 fields ({names}), got {len(fields)}; {more}")
    second = [] if len(fields) == 7 else ["0"]
    year = ["*"] if len(fields) == 5 else []
    return [*second, *fields, *year]


def notes_on(expression: str) -> Iterator[str]:
    """Yield notes about parts of a cron string that are allowed but may have an unexpected effect."""
    fields, days = _split(expression), calendar_of(expression).days
    for field, text in zip(FIELDS, fields, strict=True):
        yield from field.steps_past_the_end(text)
    if days.either:
        yield f"{expression} sets both day of month and day of week: a day has to match only one of them"
    elif days.leaves_out_months:
        yield f"{expression} skips months that are too short; use L for the last day of each month"
