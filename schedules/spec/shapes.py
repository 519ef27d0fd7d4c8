"""Readers for the parts of a JSON spec. For a wrong shape, they raise an error that names the field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from .wording import SpecError, listed, shown

LONGEST_TEXT = 1000
LONGEST_COMMENT = 200
T = TypeVar("T")


def object_of(name: str, data: object, *, allowed: Sequence[str]) -> dict[str, object]:
    if not isinstance(data, dict):
        raise SpecError(name, f"expected an object, got {shown(data)}; allowed keys: {listed(allowed)}")
    for key in data:
        if key not in allowed:
            raise SpecError(name, f"unknown key {shown(key)}; allowed: {listed(allowed)}")
    return data


def list_of(name: str, data: object, *, most: int) -> list[object]:
    if not isinstance(data, list):
        raise SpecError(name, f"expected a list, got {shown(data)}")
    if len(data) > most:
        raise SpecError(name, f"{len(data):,} entries are too many; at most {most:,} are allowed")
    return data


def each_of(items: Sequence[object], read: Callable[[object], T]) -> tuple[T, ...]:
    """Return the result of `read` for each item, without duplicates; a SpecError says which item is wrong."""
    values: dict[T, None] = {}
    for place, item in enumerate(items):
        try:
            values[read(item)] = None
        except SpecError as error:
            if len(items) == 1:
                raise
            raise SpecError(error.field, f"item {place + 1}: {error.message}", place=place) from error
    return tuple(values)


def text_of(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise SpecError(name, f"expected text, got {shown(value)}")
    text = value.strip()
    if len(text) > LONGEST_TEXT:
        raise SpecError(name, f"{len(text):,} characters are too many; at most {LONGEST_TEXT:,} are allowed")
    return text


def comment_of(name: str, data: dict[str, object]) -> str:
    comment = text_of(name, data.get("comment", ""))
    if len(comment) > LONGEST_COMMENT:
        allowed = f"at most {LONGEST_COMMENT} are allowed"
        raise SpecError(name, f"the comment has {len(comment):,} characters; {allowed}")
    if not comment.isprintable():
        raise SpecError(name, f"the comment {shown(comment)} contains characters that cannot be printed")
    return comment
