"""What a finished group means for its execution: a table of judgements."""

from __future__ import annotations

from typing import Any

import pytest

from execution.failure import Last, stopping_reason


def plan(*continues: bool) -> list[dict[str, Any]]:
    """A group of steps called a, b, c …; each says whether it continues on failure."""
    return [
        {"name": chr(ord("a") + line), "line": line, "continue_on_failure": continues}
        for line, continues in enumerate(continues)
    ]


def ended(*statuses: str) -> dict[int | None, Last]:
    return {line: Last(status, "") for line, status in enumerate(statuses)}


@pytest.mark.parametrize(
    ("status", "is_failure"),
    [
        ("complete", False),
        ("complete_with_warning", False),
        ("skipped", False),
        ("failed_with_error", True),
        ("complete_with_error", True),
        ("cancelled", True),
    ],
)
def test_what_is_a_failure_and_stops_unless_the_step_continues(status: str, is_failure: bool) -> None:
    assert ("a" in stopping_reason(plan(False), ended(status))) is is_failure
    assert stopping_reason(plan(True), ended(status)) == ""


@pytest.mark.parametrize(
    ("continues", "statuses", "stops"),
    [
        ((True, False), ("failed_with_error", "complete"), False),
        ((False, True), ("failed_with_error", "complete"), True),
        ((True, True), ("failed_with_error", "cancelled"), False),
        ((True, False), ("failed_with_error", "failed_with_error"), True),
    ],
)
def test_only_the_steps_that_failed_are_asked(
    continues: tuple[bool, ...], statuses: tuple[str, ...], stops: bool
) -> None:
    assert bool(stopping_reason(plan(*continues), ended(*statuses))) is stops


@pytest.mark.parametrize("last", [ended("pending"), ended("in_progress"), {}])
def test_a_step_without_an_outcome_has_lost_its_task_and_nobody_continues_over_it(last: Any) -> None:
    for continues in (True, False):
        assert "is missing from the queue" in stopping_reason(plan(continues), last)


def test_the_reason_names_each_failed_step_and_the_first_line_of_its_error() -> None:
    last: dict[int | None, Last] = {
        0: Last("failed_with_error", "no such host\nTraceback …"),
        1: Last("complete", ""),
        2: Last("cancelled", ""),
    }
    reason = stopping_reason(plan(False, False, False), last)
    assert reason == "Step “a” failed: no such host Step “c” was cancelled."


def test_an_endless_error_is_cut() -> None:
    assert len(stopping_reason(plan(False), {0: Last("failed_with_error", "x" * 100_000)})) < 500
