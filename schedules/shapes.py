"""JSON of any shape, read piece by piece: what is not as expected is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from .wording import SpecError, listed, shown

LONGEST_TEXT = 1000
LONGEST_COMMENT = 200


def object_of(field: str, data: object, *, allowed: Sequence[str]) -> dict[str, object]:
    if not isinstance(data, dict):
        raise SpecError(field, f"an object with {listed(allowed)} expected, got {shown(data)}")
    for key in data:
        if key not in allowed:
            raise SpecError(field, f"unknown key {shown(key)}; allowed: {listed(allowed)}")
    return data


def list_of(field: str, data: object, *, most: int) -> list[object]:
    if not isinstance(data, list):
        raise SpecError(field, f"a list expected, got {shown(data)}")
    if len(data) > most:
        raise SpecError(field, f"{len(data):,} entries are too many; at most {most:,}")
    return data


def text_of(field: str, value: object, *, longest: int = LONGEST_TEXT) -> str:
    if not isinstance(value, str):
        raise SpecError(field, f"text expected, got {shown(value)}")
    text = value.strip()
    if len(text) > longest:
        raise SpecError(field, f"{len(text):,} characters are too many; at most {longest:,}")
    return text


def comment_of(field: str, data: dict[str, object]) -> str:
    comment = text_of(field, data.get("comment", ""))
    if len(comment) > LONGEST_COMMENT:
        raise SpecError(
            field, f"the comment has {len(comment):,} characters; at most {LONGEST_COMMENT} are allowed"
        )
    if not comment.isprintable():
        raise SpecError(field, f"the comment {shown(comment)} holds characters that cannot be printed")
    return comment
