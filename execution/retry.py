"""Whether and when an attempt that did not succeed is followed by another. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

MAX_CRASHES = 3
MUST_NOT_REPEAT = "the step must not run twice"


@dataclass(frozen=True)
class Budget:
    """What a task has used up so far, and what its step allows: nothing, if its line cannot be read."""

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
        """Read the budget of a plan line; one that can be read says all of it (`brief.whole`)."""
        allowed = {each.name: line[each.name] for each in fields(cls) if each.name in line}
        return cls(failures, crashes, **allowed)

    def forgives(self, error: str) -> bool:
        """Whether it is one of the errors that are worth another try."""
        told = error.casefold()
        return not self.retry_on or any(text.casefold() in told for text in self.retry_on)


@dataclass(frozen=True)
class Next:
    """The next attempt (or none: `available_at` is None) and the budget after this one."""

    available_at: datetime | None
    failures: int
    crashes: int
    why_not: str = ""


def after_failure(budget: Budget, *, error: str, can_retry: bool, chance: float, now: datetime) -> Next:
    """`chance`, from 0 to 1, decides how much of the jitter is used."""
    failures = budget.failures + 1
    again = can_retry and failures <= budget.max_retries and budget.forgives(error)
    at = now + delay(failures, budget) * (1 + budget.retry_jitter / 100 * chance) if again else None
    return Next(at, failures, budget.crashes)


def after_crash(budget: Budget, *, now: datetime) -> Next:
    crashes = budget.crashes + 1
    if budget.on_crash == "fail":
        return Next(None, budget.failures, crashes, MUST_NOT_REPEAT)
    if crashes >= MAX_CRASHES:
        return Next(None, budget.failures, crashes, f"crash loop: lost {crashes} times")
    return Next(now, budget.failures, crashes)


def after_drain(budget: Budget, *, now: datetime) -> Next:
    """Retry without using up the budget; but a step that must not run twice has begun."""
    if budget.on_crash == "fail":
        return Next(None, budget.failures, budget.crashes, MUST_NOT_REPEAT)
    return Next(now, budget.failures, budget.crashes)


def delay(failures: int, budget: Budget) -> timedelta:
    """10, 20, 40 s … by default, at most ten minutes; or the first delay, where that is longer."""
    cap = max(budget.retry_cap_seconds, budget.retry_seconds)
    # A power that needs no more than a float holds: beyond that the cap has long been reached.
    return timedelta(seconds=min(cap, budget.retry_seconds * budget.retry_factor ** min(failures - 1, 100)))
