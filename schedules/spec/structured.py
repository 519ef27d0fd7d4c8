"""Structured calendars, whose fields have names. Unlike in cron, both day fields have to match."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .fields import FIELDS, Field
from .shapes import LONGEST_TEXT, comment_of, object_of
from .wall_calendar import Calendar, calendar_of_fields
from .wording import SpecError, listed, shown, span

KEYS = tuple(field.name.replace(" ", "_") for field in FIELDS)
_AS_RULE = ("0", "0", "0", "*", "*", "*", "*")
_AS_EXCLUSION = ("*",) * len(FIELDS)
_MOST_ITEMS = 100
_LARGEST_STEP = 9999
_RANGE = ("start", "end", "step")
_EXAMPLE = '{"start": 1, "end": 5, "step": 2}'


@dataclass(frozen=True)
class Structured:
    """A structured calendar; `texts` has the value of each field as text, from second to year."""

    texts: tuple[str, ...]
    comment: str = ""
    defaults: tuple[str, ...] = _AS_RULE

    @classmethod
    def parse(cls, name: str, item: object, *, is_exclusion: bool = False) -> Structured:
        data = object_of(name, item, allowed=(*KEYS, "comment"))
        defaults = _AS_EXCLUSION if is_exclusion else _AS_RULE
        texts = tuple(
            text_of_values(name, field, data[key]) if key in data else default
            for key, field, default in zip(KEYS, FIELDS, defaults, strict=True)
        )
        try:
            _calendar(texts)
        except ValueError as error:
            raise SpecError(name, str(error)) from error
        return cls(texts, comment_of(name, data), defaults)

    @property
    def calendar(self) -> Calendar:
        return _calendar(self.texts)

    @property
    def is_of_days(self) -> bool:
        """Return whether the calendar matches only whole days."""
        return self.texts[:3] == _AS_EXCLUSION[:3]

    @property
    def notes(self) -> Iterator[str]:
        for field, text in zip(FIELDS, self.texts, strict=True):
            yield from field.steps_past_the_end(text)
        if self.calendar.days.leaves_out_months:
            yield "day_of_month skips months that are too short; use L for the last day of each month"

    def as_json(self) -> dict[str, str]:
        columns = zip(KEYS, self.texts, self.defaults, strict=True)
        given = {key: text for key, text, default in columns if text != default}
        if not given and self.defaults == _AS_EXCLUSION:
            given = {KEYS[0]: "*"}  # an exclusion must name a field
        return given | ({"comment": self.comment} if self.comment else {})


@lru_cache(maxsize=16384)
def _calendar(texts: tuple[str, ...]) -> Calendar:
    values = [field.values(text) for field, text in zip(FIELDS, texts, strict=True)]
    calendar = calendar_of_fields(values, either_day=False)
    if calendar.first(0) is None:
        columns = zip(FIELDS[3:], texts[3:], strict=True)
        given = listed([f"{field.name} {text}" for field, text in columns if text != "*"])
        raise ValueError(f"{given} never match together: no day matches all of them")
    return calendar


def text_of_values(name: str, field: Field, value: object) -> str:
    """Return the values of a field as text; `value` is text, a number, a range or a list of these."""
    if not isinstance(value, list):
        return _short(name, field, _item(name, field, value))
    if not 1 <= len(value) <= _MOST_ITEMS:
        raise SpecError(name, f"{field.name} has {len(value):,} entries; a list can have 1 to {_MOST_ITEMS}")
    return _short(name, field, ",".join(_item(name, field, item) for item in value))


def _short(name: str, field: Field, text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise SpecError(
            name, f"{field.name} has {len(text):,} characters; at most {LONGEST_TEXT:,} are allowed"
        )
    return text


def _item(name: str, field: Field, value: object) -> str:
    if isinstance(value, dict):
        return _range(name, field, value)
    if isinstance(value, str):
        return "".join(value.split())
    if isinstance(value, bool) or not isinstance(value, int):
        forms = f'text such as "1-5", a number, {_EXAMPLE}, or a list of these'
        raise SpecError(name, f"{field.name}: expected {forms}, got {shown(value)}")
    if not field.low <= value <= field.high:
        allowed = span(field.low, field.high)
        raise SpecError(name, f"{field.name} {shown(value)} is outside the range {allowed}")
    return str(value)


def _range(name: str, field: Field, value: dict[str, object]) -> str:
    data = object_of(name, value, allowed=_RANGE)
    if "start" not in data or ("step" in data and "end" not in data):
        missing = "a range with a step needs an end" if "start" in data else "a range needs a start"
        raise SpecError(name, f"{field.name}: {missing}, such as {_EXAMPLE}")
    start, end = (_item(name, field, data.get(key, data["start"])) for key in ("start", "end"))
    step = data.get("step", 1)
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= _LARGEST_STEP:
        allowed = f"a whole number from 1 to {_LARGEST_STEP}"
        raise SpecError(name, f"{field.name}: the step must be {allowed}, not {shown(step)}")
    return start if start == end else f"{start}-{end}" + (f"/{step}" if step > 1 else "")
