"""The Invoker: an interval of five minutes meets executions that take 12, 22 and then 2 minutes."""

from __future__ import annotations

from typing import Any

import pytest

from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Execution
from tests.base import NOW, SOMEBODY, claim, end, fresh, make_schedule, make_worker
from tests.timeline import Timeline, counters, ledger, minute, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}
TAKES = (12, 22)


POLICIES: dict[str, tuple[dict[int, str], dict[str, Any], int]] = {
    "skip": (
        {
            5: "started 5, completed 17",
            10: "skipped: overlap",
            15: "skipped: overlap",
            20: "started 20, completed 42",
            25: "skipped: overlap",
            30: "skipped: overlap",
            35: "skipped: overlap",
            40: "skipped: overlap",
            45: "started 45",
        },
        {"started": 3, "skipped": {"overlap": 6}},
        1,
    ),
    "buffer_one": (
        {
            5: "started 5, completed 17",
            10: "skipped: superseded",
            15: "started 17, completed 39",
            20: "skipped: superseded",
            25: "skipped: superseded",
            30: "skipped: superseded",
            35: "started 39, completed 41",
            40: "started 41, completed 43",
            45: "started 45",
        },
        {"started": 5, "skipped": {"superseded": 4}},
        1,
    ),
    "buffer_all": (
        {
            5: "started 5, completed 17",
            10: "started 17, completed 39",
            15: "started 39, completed 41",
            20: "started 41, completed 43",
            25: "started 43, completed 45",
            30: "started 45",
            35: "pending: overlap",
            40: "pending: overlap",
            45: "pending: overlap",
        },
        {"started": 6},
        1,
    ),
    "cancel_other": (
        {5: "started 5, cancelled 11", 10: "started 11, cancelled 16", 15: "started 16, completed 18"},
        {"started": 9},
        1,
    ),
    "terminate_other": (
        {5: "started 5, cancelled 10", 10: "started 10, cancelled 15", 15: "started 15, completed 17"},
        {"started": 9},
        1,
    ),
    "allow_all": ({5: "started 5, completed 17", 10: "started 10, completed 32"}, {"started": 9}, 3),
}


@pytest.mark.parametrize("overlap", POLICIES)
def test_each_overlap_policy(overlap: str) -> None:
    """Times that a story does not name meet nothing in their way."""
    told, counted, at_once = POLICIES[overlap]
    schedule = make_schedule(spec=EVERY_FIVE, overlap=overlap)
    Timeline(TAKES).pass_to(45)
    unhindered = {at: f"started {at}, completed {at + 2}" for at in range(5, 45, 5)} | {45: "started 45"}
    assert ledger(schedule) == unhindered | told
    assert counters(schedule) == counted
    assert most_at_once() == at_once
    if overlap == "cancel_other":
        assert "make way for a newer run" in Execution.objects.earliest("started_at").cancel_reason


class TestBuffer:
    """What waits for a running execution."""

    def test_says_what_it_waits_for_and_is_exempt_from_the_catch_up_window(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all", catch_up_seconds=60)
        timeline = Timeline([8])
        timeline.pass_to(12)
        kept = schedule.occurrences.get(status="pending")
        assert (minute(kept.nominal_at), kept.reason) == (10, "overlap")
        assert (kept.blocked_by, kept.kept_at) == (Execution.objects.get().pk, minutes(10))
        timeline.pass_to(13)
        assert ledger(schedule)[10] == "started 13"

    @pytest.mark.parametrize(("policy", "fate"), [("allow_all", "started 17"), ("skip", "skipped: overlap")])
    def test_is_settled_by_the_policy_of_the_moment_not_of_its_birth(self, policy: str, fate: str) -> None:
        schedule = make_schedule(spec=EVERY_FIVE, overlap="buffer_all")
        timeline = Timeline([60])
        timeline.pass_to(17)
        changes = {"overlap": policy}
        schedule.edit(token=fresh(schedule).token, initiator=SOMEBODY, now=minutes(17), changes=changes)
        timeline.settle()
        assert ledger(schedule) == {5: "started 5", 10: fate, 15: fate}


def test_a_run_that_was_asked_to_stop_is_asked_once() -> None:
    schedule = make_schedule(spec=EVERY_FIVE, overlap="cancel_other")
    tick(minutes(5))
    claim(make_worker(), now=minutes(5))
    tick(minutes(10))
    tick(minutes(15))
    assert Execution.objects.get().cancel_requested_at == minutes(10)
    assert ledger(schedule) == {5: "started 5", 10: "skipped: superseded", 15: "pending: overlap"}


@pytest.mark.django_db(transaction=True)
class TestNothingWaitsForATick:
    """Whoever ends an execution lets the next one start, after COMMIT."""

    @pytest.mark.parametrize("overlap", ["buffer_one", "buffer_all"])
    def test_the_end_of_an_execution_starts_what_waited_for_it(self, overlap: str) -> None:
        schedule = make_schedule(overlap=overlap)
        for _ in range(2):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
        worker = make_worker()
        end(worker, *claim(worker))
        assert statuses() == ["completed", "in_progress"]
        end(worker, *claim(worker))
        assert statuses() == ["completed", "completed"]
        assert fresh(schedule).last_outcome == "completed"

    @pytest.mark.parametrize("overlap", ["cancel_other", "terminate_other"])
    def test_one_that_had_not_begun_or_is_terminated_makes_room_at_once_and_is_counted(
        self, overlap: str
    ) -> None:
        schedule = make_schedule(overlap=overlap)
        for _ in range(2):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
            if overlap == "terminate_other":
                claim(make_worker())
        assert statuses() == ["cancelled", "in_progress"]
        assert fresh(schedule).last_outcome == "cancelled"


def test_the_last_result_is_handed_to_the_next_execution_also_after_a_failure() -> None:
    """Workflow complete: recent actions and the last completion result are updated."""
    schedule = make_schedule(spec=EVERY_FIVE)
    work(5, result={"watermark": 7})
    assert fresh(schedule).last_result is None
    work(10, status="failed_with_error", error="it broke")
    tick(minutes(15))
    after = fresh(schedule)
    assert (after.last_outcome, after.last_result) == ("failed", {"watermark": 7})
    assert Execution.objects.latest("pk").last_result == {"watermark": 7}
    assert (after.failed_count, after.failures_in_a_row) == (1, 1)


def statuses() -> list[str]:
    return list(Execution.objects.order_by("pk").values_list("status", flat=True))


def work(at: int, *, status: str = "complete", **fields: object) -> None:
    """The execution that starts at this minute ends a minute later."""
    tick(minutes(at))
    worker = make_worker()
    end(worker, *claim(worker, now=minutes(at)), status=status, now=minutes(at + 1), **fields)


def most_at_once() -> int:
    """The largest number of executions that ran side by side."""
    ran = [(e.started_at, e.finished_at or minutes(10**6)) for e in Execution.objects.all()]
    return max(sum(start <= at < end for start, end in ran) for at, _ in ran)
