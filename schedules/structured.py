"""Structured calendars: each field by its name, and both day fields have to match."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from .fields import FIELDS, Field
from .shapes import comment_of, object_of
from .wall_calendar import Calendar, calendar_of_fields
from .wording import SpecError, listed, shown

KEYS = tuple(field.name.replace(" ", "_") for field in FIELDS)
_AS_RULE = ("0", "0", "0", "*", "*", "*", "*")
_AS_EXCLUSION = ("*",) * 7
_RANGE = ("start", "end", "step")
_LONGEST = 1000
_MOST_ITEMS = 100


@dataclass(frozen=True)
class Structured:
    """The texts of the fields, from second to year."""

    texts: tuple[str, ...]
    comment: str = ""
    defaults: tuple[str, ...] = _AS_RULE

    @classmethod
    def parse(cls, field: str, item: object, *, is_exclusion: bool = False) -> Structured:
        data = object_of(field, item, allowed=(*KEYS, "comment"))
        defaults = _AS_EXCLUSION if is_exclusion else _AS_RULE
        texts = tuple(
            text_of_values(field, column, data[key]) if key in data else default
            for key, column, default in zip(KEYS, FIELDS, defaults, strict=True)
        )
        try:
            _calendar(texts)
        except ValueError as error:
            raise SpecError(field, str(error)) from error
        return cls(texts, comment_of(field, data), defaults)

    @property
    def calendar(self) -> Calendar:
        return _calendar(self.texts)

    @property
    def notes(self) -> Iterator[str]:
        for field, text in zip(FIELDS, self.texts, strict=True):
            yield from field.steps_past_the_end(text)

    def as_json(self) -> dict[str, str]:
        texts = zip(KEYS, self.texts, self.defaults, strict=True)
        given = {key: text for key, text, default in texts if text != default}
        return given | ({"comment": self.comment} if self.comment else {})


@lru_cache(maxsize=16384)
def _calendar(texts: tuple[str, ...]) -> Calendar:
    values = [field.values(text) for field, text in zip(FIELDS, texts, strict=True)]
    calendar = calendar_of_fields(values, either_day=False)
    if calendar.first(0) is None:
        given = listed(
            [f"{field.name} {text}" for field, text in zip(FIELDS, texts, strict=True) if text != "*"]
        )
        raise ValueError(f"{given} never match: there is no such day")
    return calendar


def text_of_values(field: str, column: Field, value: object) -> str:
    """Write what a field allows as text, whichever way it was given."""
    if isinstance(value, list):
        if not value or len(value) > _MOST_ITEMS:
            raise SpecError(field, f"{column.name} has {len(value):,} entries; a list has 1 to {_MOST_ITEMS}")
        text = ",".join(_item(field, column, item) for item in value)
    else:
        text = _item(field, column, value)
    if len(text) > _LONGEST:
        raise SpecError(field, f"{column.name} has {len(text):,} characters; at most {_LONGEST:,}")
    return text


def _item(field: str, column: Field, value: object) -> str:
    if isinstance(value, dict):
        return _range(field, column, value)
    if isinstance(value, int) and not isinstance(value, bool):
        if not column.low <= value <= column.high:
            allowed = f"{column.low}\N{EN DASH}{column.high}"
            raise SpecError(field, f"{column.name} {shown(value)} is out of range {allowed}")
        return str(value)
    if isinstance(value, str):
        return "".join(value[: _LONGEST * 2].split()).lower()
    allowed = 'text such as "1-5", a number, {"start": 1, "end": 5, "step": 2}, or a list of these'
    raise SpecError(field, f"{column.name}: {allowed} expected, got {shown(value)}")


def _range(field: str, column: Field, value: dict[str, object]) -> str:
    for key in value:
        if key not in _RANGE:
            raise SpecError(field, f"{column.name}: unknown key {shown(key)}; allowed: {listed(_RANGE)}")
    if "start" not in value or ("step" in value and "end" not in value):
        missing = "end" if "start" in value else "start"
        raise SpecError(field, f"{column.name}: a range needs its {missing}, such as {_EXAMPLE}")
    start, end = (_item(field, column, value.get(key, value["start"])) for key in ("start", "end"))
    step = value.get("step", 1)
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= column.high:
        raise SpecError(
            field, f"{column.name}: step {shown(step)} is no whole number from 1 to {column.high}"
        )
    return start if start == end else f"{start}-{end}" + (f"/{step}" if step > 1 else "")


_EXAMPLE = '{"start": 1, "end": 5, "step": 2}'
