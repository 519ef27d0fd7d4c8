"""One try of a delivery, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

# After the first try, which comes at once.
DELAYS = tuple(timedelta(seconds=each) for each in (5, 30, 5 * 60, 60 * 60, 6 * 60 * 60))
MOST_TRIES = len(DELAYS) + 1
LONGEST_ASKED = timedelta(hours=1)
GONE = 410
SLOW_DOWN = (429, 503)
# No endpoint is disabled for a bad day.
HOPELESS_AFTER = timedelta(days=3)
HOPELESS_FAILURES = 10


@dataclass(frozen=True, kw_only=True)
class Tried:
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


def next_try(tried: Tried, *, left: int, now: datetime) -> datetime | None:
    """When a delivery that failed so is tried again; None if it has failed for good."""
    if tried.is_gone or left <= 0:
        return None
    delay = DELAYS[max(0, len(DELAYS) - left)]
    if tried.status in SLOW_DOWN:
        delay = max(delay, min(_asked(tried.retry_after, now), LONGEST_ASKED))
    return now + delay


def is_hopeless(*, failures: int, succeeded_at: datetime, now: datetime) -> bool:
    """Whether an endpoint has been failing for so long that nobody can be there any more."""
    return failures >= HOPELESS_FAILURES and now - succeeded_at >= HOPELESS_AFTER


def _asked(retry_after: str, now: datetime) -> timedelta:
    """Seconds or a date; whatever else it is asks for nothing."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return timedelta(seconds=int(text[:9]))
    try:
        return parsedate_to_datetime(text) - now
    except (TypeError, ValueError):
        return timedelta(0)
