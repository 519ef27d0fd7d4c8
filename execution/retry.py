"""Whether and when an attempt that did not succeed is followed by another. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

MAX_CRASHES = 3
CAP_SECONDS = 600
MUST_NOT_REPEAT = "the step must not run twice"


@dataclass(frozen=True)
class Budget:
    """What a task has used up so far, and what its step allows."""

    failures: int
    crashes: int
    max_retries: int
    retry_seconds: int
    on_crash: str

    @classmethod
    def of(cls, failures: int, crashes: int, step: Any) -> Budget:
        """A plan line that cannot be read allows nothing."""
        allowed = step if isinstance(step, dict) else {}
        return cls(
            failures,
            crashes,
            max_retries=allowed.get("max_retries", 0),
            retry_seconds=allowed.get("retry_seconds", 10),
            on_crash=allowed.get("on_crash", "fail"),
        )


@dataclass(frozen=True)
class Next:
    """The next attempt (or none: `available_at` is None) and the budget after this one."""

    available_at: datetime | None
    failures: int
    crashes: int
    why_not: str = ""


def after_failure(budget: Budget, *, can_retry: bool, now: datetime) -> Next:
    failures = budget.failures + 1
    again = can_retry and failures <= budget.max_retries
    at = now + delay(failures, budget.retry_seconds) if again else None
    return Next(at, failures, budget.crashes)


def after_crash(budget: Budget, *, now: datetime) -> Next:
    crashes = budget.crashes + 1
    if budget.on_crash == "fail":
        return Next(None, budget.failures, crashes, MUST_NOT_REPEAT)
    if crashes >= MAX_CRASHES:
        return Next(None, budget.failures, crashes, f"crash loop: lost {crashes} times")
    return Next(now, budget.failures, crashes)


def after_drain(budget: Budget, *, now: datetime) -> Next:
    """Nobody's fault, so it uses up nothing; but a step that must not run twice has begun."""
    if budget.on_crash == "fail":
        return Next(None, budget.failures, budget.crashes, MUST_NOT_REPEAT)
    return Next(now, budget.failures, budget.crashes)


def delay(failures: int, base_seconds: int) -> timedelta:
    """10, 20, 40 s … for a base of 10 s, at most ten minutes (or the base, where that is longer)."""
    cap = max(CAP_SECONDS, base_seconds)
    return timedelta(seconds=min(cap, base_seconds * 2 ** min(failures - 1, 30)))
