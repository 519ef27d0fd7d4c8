"""Text that every database takes: PostgreSQL refuses NUL, and no driver can send a lone surrogate."""

from __future__ import annotations

import re

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean_text(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return _UNSTORABLE.sub(REPLACEMENT, text)


def clean_json(value: object) -> object:
    """The same value with clean text at every depth, keys included."""
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {
                clean_text(key) if isinstance(key, str) else key: clean_json(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [clean_json(item) for item in value]
    return value
