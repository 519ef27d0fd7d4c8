"""What a line cannot hold as it is stands in quotation marks, as in JSON."""

from __future__ import annotations

import json

QUOTED = r'"(?:[^"\\]|\\.)*"'


def quoted(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def unquoted(text: str) -> str:
    """What only looks as if it were in quotation marks stays as it is."""
    text = text.strip()
    try:
        return str(json.loads(text)) if text.startswith('"') else text
    except ValueError:
        return text
