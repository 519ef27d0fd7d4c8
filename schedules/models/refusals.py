"""Why a change is not made; the message says what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from schedules.placeholders import hint

MOST_NAMED = 5
MOST_MEANT = 3


class Conflict(Exception):
    """Somebody else changed it first."""

    def __init__(self, token: int, *, what: str = "schedule") -> None:
        self.token = token
        super().__init__(
            f"Somebody else changed this {what} meanwhile. Load it again, then repeat your change."
        )


class Refused(Exception):
    """Its state does not allow it; the message says why and what to do."""


class KeyReused(Refused):
    """The same key with the same request gets what the first one made; with another request, this."""

    def __init__(self, key: str) -> None:
        super().__init__(f"The key “{key}” was used for another request: choose another.")


def unknown_schedule(name: str, known: Collection[str], *, within: str = "") -> Refused:
    return Refused(f"There is no schedule “{name}”{within}; {_advice(name, known)}")


def _advice(name: str, known: Collection[str]) -> str:
    """Names that are like it, or begin like it; else some of those that there are."""
    if not known:
        return "there are none yet"
    beginnings = {each.casefold()[: len(name)]: each for each in known}
    like = get_close_matches(name.casefold(), beginnings, n=MOST_MEANT, cutoff=0.7)
    if get_close_matches(name.casefold(), [each.casefold() for each in known]) or not like:
        return hint(name, known)
    return f"did you mean {' or '.join(beginnings[each] for each in like)}?"


def named(rows: Sequence[object]) -> str:
    """The first of them by name, and how many more there are."""
    names = [f"“{row}”" for row in rows[:MOST_NAMED]]
    rest = len(rows) - len(names)
    return ", ".join(names) + (f" and {rest:,} more" if rest else "")
