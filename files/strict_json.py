"""A strict reader of JSON: without NaN, repeated keys, huge numbers or deep nesting."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

MAX_DEPTH = 32
MAX_DIGITS = 100
MAX_CHARS = 256 * 1024


def loads(text: str, *, most: int = MAX_CHARS, deepest: int = MAX_DEPTH) -> Any:
    """Parse JSON text; raise ValueError if it is invalid, too long, too deep, or has repeated keys."""
    if len(text) > most:
        raise ValueError(f"{len(text):,} characters are too many; at most {most:,} are allowed")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_int,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise _too_deep(deepest) from None
    if not _is_within(value, deepest):
        raise _too_deep(deepest)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} appears twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; use a finite number or null")


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits is too long; at most {MAX_DIGITS} are allowed")
    return int(text)


def _is_within(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_within(part, levels - 1) for part in parts)


def _too_deep(deepest: int) -> ValueError:
    return ValueError(f"nested too deeply; at most {deepest} levels are allowed")
