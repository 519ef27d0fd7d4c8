"""Functions that make text storable. PostgreSQL refuses NUL, and no driver can send a lone surrogate."""

from __future__ import annotations

import re
from collections.abc import Callable

# Well below Python's recursion limit.
MAX_LEVELS = 200
LONGEST_SEARCH = 200
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean_text(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return _UNSTORABLE.sub(REPLACEMENT, text)


def search_text(typed: str) -> str:
    """Clean a search term and shorten it, because SQLite refuses search patterns longer than 50 kB."""
    return clean_text(typed).strip()[:LONGEST_SEARCH]


def clean_lines(text: str) -> str:
    """Clean text of several lines, and replace the line ends CR LF, which browsers send, with LF."""
    return clean_text(text).replace("\r\n", "\n")


def clean_json(value: object) -> object:
    """Clean all strings in a JSON value, including its keys."""
    return map_json(value, lambda leaf: clean_text(leaf) if isinstance(leaf, str) else leaf)


def map_json(value: object, change: Callable[[object], object], levels: int = MAX_LEVELS) -> object:
    """Apply a function to every key and every leaf of a JSON value, and return the new value.

    Raise ValueError if the value is nested more than `levels` deep or contains itself.
    """
    match value:
        case dict() | list() | tuple() if not levels:
            raise ValueError(f"nested too deeply; at most {MAX_LEVELS} levels are allowed")
        case dict():
            return {change(key): map_json(item, change, levels - 1) for key, item in value.items()}
        case list() | tuple():
            return [map_json(item, change, levels - 1) for item in value]
    return change(value)
