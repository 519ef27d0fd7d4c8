"""Decide whether and when an unsuccessful attempt is followed by another. Pure logic, no database access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

MAX_CRASHES = 3
MUST_NOT_REPEAT = "not retried, because the step must not run twice"


@dataclass(frozen=True)
class Budget:
    """How often a task has failed and crashed so far, and the retry policy of its step.

    By default, the retry policy allows no retries. This applies if the plan line of the step cannot be read.
    """

    failures: int
    crashes: int
    on_crash: str = "fail"
    max_retries: int = 0
    retry_seconds: int = 0
    retry_factor: float = 1
    retry_cap_seconds: int = 0
    retry_jitter: int = 0
    retry_on: Sequence[str] = ()

    @classmethod
    def of(cls, failures: int, crashes: int, line: Mapping[str, Any]) -> Budget:
        """Return the budget of a task with these counts and the retry policy in its plan line.

        The line must contain all values, as `brief.whole` returns it, or be empty if it could not be read.
        """
        allowed = {each.name: line[each.name] for each in fields(cls) if each.name in line}
        return cls(failures, crashes, **allowed)

    def forgives(self, error: str) -> bool:
        """Return whether the retry policy allows a retry after this error."""
        told = error.casefold()
        return not self.retry_on or any(text.casefold() in told for text in self.retry_on)


@dataclass(frozen=True)
class Next:
    """What follows an attempt.

    `available_at` is when the next attempt can start; None if there is none. `failures` and `crashes` are how
    often the task has failed and crashed so far.
    """

    available_at: datetime | None
    failures: int
    crashes: int
    why_not: str = ""


def after_failure(budget: Budget, *, error: str, can_retry: bool, chance: float, now: datetime) -> Next:
    """Decide what follows a failed attempt.

    `chance`, from 0 to 1, is the fraction of the retry policy's jitter that is added to the delay.
    """
    failures = budget.failures + 1
    again = can_retry and failures <= budget.max_retries and budget.forgives(error)
    at = now + delay(failures, budget) * (1 + budget.retry_jitter / 100 * chance) if again else None
    return Next(at, failures, budget.crashes)


def after_crash(budget: Budget, *, now: datetime) -> Next:
    crashes = budget.crashes + 1
    if budget.on_crash == "fail":
        return Next(None, budget.failures, crashes, MUST_NOT_REPEAT)
    if crashes >= MAX_CRASHES:
        return Next(
            None, budget.failures, crashes, f"crash loop, {crashes} workers were lost while running this step"
        )
    return Next(now, budget.failures, crashes)


def after_drain(budget: Budget, *, now: datetime) -> Next:
    """Decide what follows an attempt that was interrupted because its worker is stopping.

    A retry does not count against the budget. A step that must not run twice is not retried, because the step
    may have begun.
    """
    if budget.on_crash == "fail":
        return Next(None, budget.failures, budget.crashes, MUST_NOT_REPEAT)
    return Next(now, budget.failures, budget.crashes)


def delay(failures: int, budget: Budget) -> timedelta:
    """Return the delay after this many failures: with a step's default settings 10, 20, 40 … 600 seconds.

    If the first delay is longer than the maximum, the first delay is used before every attempt.
    """
    cap = max(budget.retry_cap_seconds, budget.retry_seconds)
    # The exponent is bounded so that the power fits into a float; the cap is reached long before.
    return timedelta(seconds=min(cap, budget.retry_seconds * budget.retry_factor ** min(failures - 1, 100)))
