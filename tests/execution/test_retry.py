"""Whether and when another attempt follows: tables of decisions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from execution import retry
from execution.models.brief import UNSAID
from execution.retry import Budget, Next, after_crash, after_drain, delay
from tests.base import NOW


def budget(failures: int = 0, crashes: int = 0, **step: Any) -> Budget:
    return Budget.of(failures, crashes, UNSAID | step)


def after_failure(
    used: Budget, *, can_retry: bool = True, error: str = "it broke", chance: float = 0
) -> Next:
    return retry.after_failure(used, error=error, can_retry=can_retry, chance=chance, now=NOW)


@pytest.mark.parametrize(
    ("failures", "base", "seconds"),
    [
        (1, 10, 10),
        (2, 10, 20),
        (6, 10, 320),
        (7, 10, 600),
        (100, 10, 600),
        (9, 0, 0),
        (1, 3_600, 3_600),
        (5, 3_600, 3_600),
    ],
)
def test_the_delay_doubles_up_to_ten_minutes(failures: int, base: int, seconds: int) -> None:
    assert delay(failures, budget(retry_seconds=base)) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("max_retries", "failures", "again"),
    [(0, 0, False), (1, 0, True), (1, 1, False), (3, 2, True), (3, 3, False), (100, 99, True)],
)
def test_the_budget_of_failures(max_retries: int, failures: int, again: bool) -> None:
    following = after_failure(budget(failures, max_retries=max_retries))
    assert (following.available_at is not None) is again


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        ({}, [10, 20, 40]),
        ({"retry_factor": 1}, [10, 10, 10]),
        ({"retry_factor": 1.5}, [10, 15, 22.5]),
        ({"retry_cap_seconds": 25}, [10, 20, 25]),
        ({"retry_cap_seconds": 5}, [10, 10, 10]),
        ({"retry_jitter": 50}, [15, 30, 60]),
    ],
)
def test_the_policy_of_a_step(policy: dict[str, Any], waits: list[float]) -> None:
    found = [after_failure(budget(n, **policy), chance=1).available_at for n in range(3)]
    assert [(at - NOW).total_seconds() for at in found if at] == waits


def test_a_hundred_retries_stay_within_the_cap() -> None:
    used = budget(99, retry_factor=10, max_retries=100, retry_seconds=86_400, retry_cap_seconds=604_800)
    assert after_failure(used).available_at == NOW + timedelta(days=7)


@pytest.mark.parametrize(
    ("retry_on", "error", "again"),
    [
        ([], "ValueError: no", True),
        (["ConnectionError"], "ConnectionError: refused", True),
        (["ConnectionError"], "ValueError: no", False),
        (["503", "timed out"], "Timed out after 5 s", True),
        (["503"], "the response was 503", True),
    ],
)
def test_only_the_errors_that_the_step_names_are_retried(
    retry_on: list[str], error: str, again: bool
) -> None:
    following = after_failure(budget(retry_on=retry_on), error=error)
    assert (following.available_at is not None) is again


def test_a_failure_that_cannot_be_cured_is_not_retried() -> None:
    assert after_failure(budget(), can_retry=False) == Next(None, failures=1, crashes=0)


def test_a_failure_costs_no_crash_and_a_crash_no_failure() -> None:
    assert after_failure(budget(1, 2)).crashes == 2
    assert after_crash(budget(3, 0), now=NOW) == Next(NOW, failures=3, crashes=1)


def test_a_crash_is_followed_at_once_and_the_third_one_is_a_crash_loop() -> None:
    assert after_crash(budget(crashes=1), now=NOW).available_at == NOW
    last = after_crash(budget(crashes=2), now=NOW)
    assert last.available_at is None
    assert "crash loop" in last.why_not


def test_a_crash_does_not_depend_on_retries_but_on_whether_the_step_may_run_twice() -> None:
    assert after_crash(budget(max_retries=0), now=NOW).available_at == NOW
    assert after_crash(budget(on_crash="fail"), now=NOW) == Next(
        None, 0, 1, "not retried, because the step must not run twice"
    )


@pytest.mark.parametrize("used", [budget(), budget(3, 2), budget(max_retries=0)])
def test_a_drain_is_followed_at_once_and_counts_to_neither(used: Budget) -> None:
    assert after_drain(used, now=NOW) == Next(NOW, used.failures, used.crashes)


def test_a_step_that_must_not_run_twice_is_not_queued_again_by_a_drain() -> None:
    assert after_drain(budget(1, 1, on_crash="fail"), now=NOW) == Next(
        None, 1, 1, "not retried, because the step must not run twice"
    )
