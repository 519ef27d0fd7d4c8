"""Why a change is not made; the message says what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from schedules.placeholders import hint

MOST_NAMED = 5


class Conflict(Exception):
    """Somebody else changed it first."""

    def __init__(self, token: int, *, what: str = "schedule") -> None:
        self.token = token
        super().__init__(
            f"Somebody else changed this {what} meanwhile. Load it again, then repeat your change."
        )


class Refused(Exception):
    """Its state does not allow it; the message says why and what to do."""


def unknown_schedule(name: str, known: Collection[str], *, within: str = "") -> Refused:
    advice = hint(name, known) if known else "there are none yet"
    return Refused(f"There is no schedule “{name}”{within}; {advice}")


def named(rows: Sequence[object]) -> str:
    """The first of them by name, and how many more there are."""
    names = [f"“{row}”" for row in rows[:MOST_NAMED]]
    rest = len(rows) - len(names)
    return ", ".join(names) + (f" and {rest:,} more" if rest else "")
