"""Days of the week as boxes to tick, and as the text of a spec."""

from __future__ import annotations

from itertools import groupby

from schedules.spec.fields import DAY_OF_WEEK

from .draft import Texts

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EVERY_DAY = "*"


def ticked(text: str) -> Texts:
    """`was` remembers the text, so that it stays as somebody wrote it while the days are the same.

    What no boxes can say, such as the second Friday, stays text.
    """
    days = _days(text)
    if days is None:
        return {"on": text}
    if text == EVERY_DAY:
        return {}
    return {DAYS[day]: "on" for day in days} | {"was": text}


def text_of(texts: Texts) -> str:
    if written := texts.get("on", "").strip():
        return written
    chosen = tuple(number for number, day in enumerate(DAYS) if texts.get(day))
    was = texts.get("was", "")
    if was and _days(was) == chosen:
        return was
    return EVERY_DAY if len(chosen) in (0, len(DAYS)) else ",".join(_runs(chosen))


def _days(text: str) -> tuple[int, ...] | None:
    try:
        values = DAY_OF_WEEK.values(text)
    except ValueError:
        return None
    return None if values.nth_weekdays else values.weekdays


def _runs(chosen: tuple[int, ...]) -> list[str]:
    """Three and more in a row as a range: mon-fri."""
    texts = []
    for _, group in groupby(enumerate(chosen), key=lambda pair: pair[1] - pair[0]):
        days = [DAYS[day] for _, day in group]
        texts += [f"{days[0]}-{days[-1]}"] if len(days) > 2 else days
    return texts
