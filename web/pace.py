"""How fast a running step makes progress, and how much time it probably needs for the rest."""

from __future__ import annotations

from datetime import datetime, timedelta

from text.words import span

MINUTE = 60
SHORTEST = 10
LONGEST = 366 * 86_400


def pace(done: int, total: int | None, *, since: datetime, now: datetime) -> str:
    """Return the average rate and the time left, such as “850/s · about 2 min left”; empty if unknown."""
    elapsed = (now - since).total_seconds()
    if done <= 0 or elapsed <= 0:
        return ""
    rate = done / elapsed
    left = _left((total - done) / rate) if total and total > done else ""
    return f"{_rate(rate)} · {left}" if left else _rate(rate)


def _rate(per_second: float) -> str:
    if per_second >= 1:
        return f"{_number(per_second)}/s"
    if per_second * MINUTE >= 1:
        return f"{_number(per_second * MINUTE)}/min"
    return f"{_number(per_second * MINUTE * MINUTE)}/h"


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= SHORTEST else f"{rate:.1f}"


def _left(seconds: float) -> str:
    """Return how long the rest takes, to the minute if it takes minutes; empty if it takes years."""
    if seconds > LONGEST:
        return ""
    if seconds < SHORTEST:
        return "a few seconds left"
    unit = MINUTE if seconds >= MINUTE else 1
    return f"about {span(timedelta(seconds=round(seconds / unit) * unit))} left"
