"""Converts days of the week between checkboxes and the text in a spec."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from schedules.spec.fields import DAY_OF_WEEK

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY = "*"


def initial_of(text: str) -> dict[str, Any]:
    """Return the initial field values for the weekdays in a spec.

    `days` are the ticked boxes. `was` is the original text, which `text_of` returns if the ticked days stay
    the same. Text that boxes cannot express, such as the second Friday, becomes the value of the text field
    `on`.
    """
    days = _days(text)
    if days is None:
        return {"on": text}
    if text == EVERY_DAY:
        return {}
    return {"days": [DAYS[day] for day in days], "was": text}


def text_of(days: Sequence[str], was: str = "") -> str:
    chosen = tuple(number for number, day in enumerate(DAYS) if day in days)
    if was and _days(was) == chosen:
        return was
    return EVERY_DAY if len(chosen) in (0, len(DAYS)) else ",".join(_ranges(chosen))


def _days(text: str) -> tuple[int, ...] | None:
    try:
        values = DAY_OF_WEEK.values(text)
    except ValueError:
        return None
    return None if values.nth_weekdays else values.weekdays


def _ranges(chosen: tuple[int, ...]) -> list[str]:
    """Return the names of the chosen days; three or more in a row become a range such as mon-fri."""
    texts = []
    for _, group in groupby(enumerate(chosen), key=lambda pair: pair[1] - pair[0]):
        days = [DAYS[day] for _, day in group]
        texts += [f"{days[0]}-{days[-1]}"] if len(days) > 2 else days
    return texts
