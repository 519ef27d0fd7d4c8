"""Attempts to send a delivery: their results, the delays between them, and when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

# The delays before the second and later tries. The first try is immediate.
DELAYS = tuple(timedelta(seconds=each) for each in (5, 30, 5 * 60, 60 * 60, 6 * 60 * 60))
MOST_TRIES = len(DELAYS) + 1
LONGEST_ASKED = timedelta(hours=1)
GONE = 410
SLOW_DOWN = (429, 503)
# An endpoint is disabled only after failing for several days.
HOPELESS_AFTER = timedelta(days=3)
HOPELESS_FAILURES = 10


@dataclass(frozen=True, kw_only=True)
class TryResult:
    """The result of one attempt to send a delivery."""

    at: datetime
    seconds: float = 0.0
    status: int | None = None
    answer: str = ""
    error: str = ""
    retry_after: str = ""

    @property
    def is_delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_gone(self) -> bool:
        return self.status == GONE

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "seconds": round(self.seconds, 3),
            "status": self.status,
            "answer": self.answer,
            "error": self.error,
        }


def next_try(tried: TryResult, *, left: int, now: datetime) -> datetime | None:
    """Return when to send again after a failed attempt, or None if there is no further attempt."""
    if tried.is_gone or left <= 0:
        return None
    delay = DELAYS[max(0, len(DELAYS) - left)]
    if tried.status in SLOW_DOWN:
        delay = max(delay, min(_asked(tried.retry_after, now), LONGEST_ASKED))
    return now + delay


def is_hopeless(*, failures: int, succeeded_at: datetime, now: datetime) -> bool:
    """Return whether an endpoint has failed so often, and for so long, that it should be disabled."""
    return failures >= HOPELESS_FAILURES and now - succeeded_at >= HOPELESS_AFTER


def _asked(retry_after: str, now: datetime) -> timedelta:
    """Return the delay that a Retry-After header (seconds or a date) asks for; zero if unreadable."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=int(text[:9]))
    try:
        return parsedate_to_datetime(text) - now
    except (TypeError, ValueError):
        return timedelta(0)
