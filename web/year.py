"""A year as months, weeks and days, some of them marked."""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

WEEKDAYS = ("M", "T", "W", "T", "F", "S", "S")


class Day(NamedTuple):
    day: date
    mark: str | None
    """The name of the mark, possibly empty; None if the day is not marked."""

    @property
    def is_marked(self) -> bool:
        return self.mark is not None

    @property
    def is_weekend(self) -> bool:
        return self.day.weekday() >= 5


class Month(NamedTuple):
    first: date
    weeks: list[list[Day | None]]


def months(year: int, marked: Sequence[tuple[date, str]]) -> list[Month]:
    """Return the months of a year; weeks begin on Monday, and days of other months are None."""
    marks: dict[date, str] = {}
    for day, name in marked:
        marks[day] = " · ".join(filter(None, (marks.get(day, ""), name)))
    return [_month(year, number, marks) for number in range(1, 13)]


def _month(year: int, number: int, marks: dict[date, str]) -> Month:
    weeks = calendar.Calendar().monthdayscalendar(year, number)
    return Month(
        date(year, number, 1),
        [[_day(date(year, number, day), marks) if day else None for day in week] for week in weeks],
    )


def _day(day: date, marks: dict[date, str]) -> Day:
    return Day(day, marks.get(day))
