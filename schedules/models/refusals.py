"""Exceptions for refused changes; their messages say what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from schedules.placeholders import hint

MOST_NAMED = 5
MOST_MEANT = 3


class Conflict(Exception):
    """The error for a change that is based on an outdated version."""

    def __init__(self, token: int, *, what: str = "schedule") -> None:
        self.token = token
        super().__init__(f"This {what} was changed in the meantime. Reload it, then repeat your change.")


class Refused(Exception):
    """The error for a change that the current state does not allow; its message says why and what to do."""


class KeyReused(Refused):
    """The error for an idempotency key that was already used for a different request."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key “{key}” was already used for another request: use a different key."
        )


def unknown_schedule(name: str, known: Collection[str], *, within: str = "") -> Refused:
    return Refused(f"Unknown schedule “{name}”{within}; {_advice(name, known)}")


def _advice(name: str, known: Collection[str]) -> str:
    """Return a hint: similar names, names with a similar beginning, or else some of the known names."""
    if not known:
        return "no schedules exist yet"
    beginnings = {each.casefold()[: len(name)]: each for each in known}
    like = get_close_matches(name.casefold(), beginnings, n=MOST_MEANT, cutoff=0.7)
    if get_close_matches(name.casefold(), [each.casefold() for each in known]) or not like:
        return hint(name, known)
    return f"did you mean {' or '.join(beginnings[each] for each in like)}?"


def named(rows: Sequence[object]) -> str:
    """Return the names of the first objects, and the number of the remaining objects."""
    names = [f"“{row}”" for row in rows[:MOST_NAMED]]
    rest = len(rows) - len(names)
    return ", ".join(names) + (f" and {rest:,} more" if rest else "")
