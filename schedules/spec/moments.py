"""Parses times and dates, with or without a UTC offset."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from .shapes import text_of
from .wall_calendar import FIRST, LAST
from .wording import SpecError, shown, span
from .zones import gap_end, once, passes_of, wall_time, zone_of

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MOMENT = re.compile(_DATE + r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?")
_EXAMPLES = "2026-12-01T09:00 (in the schedule's time zone) or 2026-12-01T09:00:00Z"


def moment_of(value: object, time_zone: str, dst: str, *, field: str = "at") -> datetime:
    moment = clock_reading(field, value)
    return moment if moment.tzinfo else _on_the_clock(field, moment, time_zone, dst)


def bound_of(field: str, value: object, time_zone: str, dst: str, *, at: time) -> datetime:
    """Return the instant of a bound, which is given as a time or as a date.

    A date stands for the time of day `at` on that date.
    """
    text = text_of(field, value)
    if re.fullmatch(_DATE, text):
        wall = datetime.combine(date_of(field, text), at)
        return whole_second(field, _on_the_clock(field, wall, time_zone, dst))
    return whole_second(field, moment_of(text, time_zone, dst, field=field))


def clock_reading(field: str, value: object) -> datetime:
    """Return a typed time as a datetime; the datetime is naive if the text has no UTC offset."""
    text = text_of(field, value)
    if not _MOMENT.fullmatch(text):
        raise SpecError(field, f"{shown(text)} is not a time; write it like {_EXAMPLES}")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SpecError(field, f"{shown(text)} is not a time: {error}") from error
    _check_year(field, text, moment)
    return moment


def date_of(field: str, text: str) -> date:
    if not re.fullmatch(_DATE, text):
        raise SpecError(field, f"{shown(text)} is not a date; write it like 2026-12-25")
    try:
        day = date.fromisoformat(text)
    except ValueError as error:
        raise SpecError(field, f"{shown(text)} is not a date: {error}") from error
    _check_year(field, text, day)
    return day


def _check_year(field: str, text: str, day: date) -> None:
    if not FIRST.year <= day.year <= LAST.year:
        allowed = span(FIRST.year, LAST.year)
        raise SpecError(field, f"{shown(text)}: year {day.year} is outside the range {allowed}")


def _on_the_clock(field: str, wall: datetime, time_zone: str, dst: str) -> datetime:
    zone = zone_of(time_zone)
    first_pass, second_pass = passes_of(wall, zone)
    instant = once(wall, zone) if dst == "cron" else first_pass
    if instant is None or (dst == "literal" and first_pass > second_pass):
        end = wall_time(gap_end(wall, zone), zone)
        start = end - (first_pass - second_pass)
        jump = f"the clocks in {time_zone} go from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}"
        raise SpecError(field, f"{wall:%Y-%m-%dT%H:%M} does not exist: {jump}")
    return instant


def whole_second(field: str, moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise SpecError(field, f"{moment} has no UTC offset")
    if not FIRST <= moment <= LAST:
        raise SpecError(
            field, f"{moment} is outside the range {span(f'{FIRST:%Y-%m-%d}', f'{LAST:%Y-%m-%d}')}"
        )
    return moment.astimezone(UTC).replace(microsecond=0)
