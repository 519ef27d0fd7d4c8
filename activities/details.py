"""The details of an item as short texts, for pages and terminals."""

from __future__ import annotations

import json
from typing import NamedTuple

MOST_DETAILS = 20
LONGEST = 120
NO_VALUE = "none"


class Detail(NamedTuple):
    """One detail of an item. `before` is None unless the detail is the change of a value."""

    name: str
    before: str | None
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.after if self.before is None else f'{self.before} → {self.after}'}"


def details_of(data: object) -> list[Detail]:
    """Return the details that `ActivityItem.data` describes, at most MOST_DETAILS and one for the rest.

    They are sorted by name, as PostgreSQL does not keep their order.
    """
    if data is None:
        return []
    named = data if isinstance(data, dict) else {"data": data}
    shown = [_detail(name, value) for name, value in sorted(named.items())[:MOST_DETAILS]]
    rest = len(named) - len(shown)
    return [*shown, Detail("…", None, f"{rest:,} more")] if rest else shown


def _detail(name: str, value: object) -> Detail:
    if isinstance(value, list) and len(value) == 2:
        return Detail(name, _text(value[0]), _text(value[1]))
    return Detail(name, None, _text(value))


def _text(value: object) -> str:
    """Return a value as text: a list with commas, and anything else that is not text as JSON."""
    if value is None:
        return NO_VALUE
    if isinstance(value, list):
        return _cut(", ".join(_text(each) for each in value))
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
