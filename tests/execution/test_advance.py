"""What happens when a group is done: the next one, or the end, judged from the last attempts."""

from __future__ import annotations

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from execution.models.attempt import ClaimedTask
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    everything,
    fresh,
    make_worker,
    queue,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)

pytestmark = pytest.mark.django_db


def root(execution: Execution) -> Activity:
    return Activity.objects.get(pk=execution.activity_id)


class TestTheNextGroup:
    def test_it_is_queued_when_the_last_task_of_the_group_is_done(self) -> None:
        execution = start(step("a", 0), step("b", 0), step("c", 1), step("d", 2))
        worker = make_worker()
        a, b = claim(worker)
        end(worker, a)
        assert queue(execution) == {"b": "processing", "c": "waiting", "d": "waiting"}
        assert fresh(execution).current_index == 0
        end(worker, b, now=NOW + seconds(7))
        assert queue(execution) == {"c": "queued", "d": "waiting"}
        assert fresh(execution).current_index == 1
        assert WorkerTask.objects.get(name="c").available_at == NOW + seconds(7)

    def test_a_retry_that_waits_for_its_time_keeps_the_group_open(self) -> None:
        execution = start(step("good"), step("bad", max_retries=1), step("next", 1))
        worker = make_worker()
        good, bad = claim(worker)
        break_down(worker, bad)
        end(worker, good)
        assert queue(execution) == {"bad": "queued", "next": "waiting"}
        end(worker, *claim(worker, now=NOW + seconds(10)))
        assert queue(execution) == {"next": "queued"}

    def test_one_batch_moves_many_executions_each_on_its_own_way(self) -> None:
        going, ending, failing = (
            start(step("a"), step("b", 1)),
            start(step("a")),
            start(step("a"), step("b", 1)),
        )
        waiting = start(step("a"), step("slow"), step("b", 1))
        worker = make_worker()
        tasks = {(task.execution_id, task.name): task for task in claim(worker)}
        break_down(worker, tasks[failing.pk, "a"])
        end(worker, *(tasks[e.pk, "a"] for e in (going, ending, waiting)))
        states = [fresh(e).status for e in (going, ending, failing, waiting)]
        assert states == ["in_progress", "completed", "failed", "in_progress"]
        assert [fresh(e).current_index for e in (going, ending, failing, waiting)] == [1, 0, 0, 0]

    def test_the_plan_is_the_only_source_after_the_start(self) -> None:
        execution = start(step("a", 0), step("b", 1, "result", kwargs={"value": "planned"}))
        schedule = execution.schedule
        assert schedule is not None
        steps = [step("other", 0, "fail")]
        schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"name": "Renamed"}, steps=steps)
        assert run_until_idle() == ["a", "b"]
        assert attempts(execution, "b")[0].result == "planned"
        assert fresh(execution).schedule_name != "Renamed"


class TestCompleted:
    def test_after_the_last_group(self) -> None:
        execution = start(step("a"), step("b", 1))
        worker = make_worker()
        end(worker, *claim(worker))
        end(worker, *claim(worker), now=NOW + seconds(9))
        done = fresh(execution)
        assert (done.status, done.finished_at, done.error) == ("completed", NOW + seconds(9), "")
        assert root(execution).status == Activity.Status.COMPLETE
        assert root(execution).duration == seconds(9)
        assert not WorkerTask.objects.exists()

    @pytest.mark.parametrize(
        ("status", "whole"),
        [
            ("complete_with_warning", "complete_with_warning"),
            ("failed_with_error", "complete_with_warning"),
            ("complete_with_error", "complete_with_warning"),
            ("skipped", "complete"),
            ("complete", "complete"),
        ],
    )
    def test_what_its_steps_leave_of_warnings(self, status: str, whole: str) -> None:
        execution = start(step("a", continue_on_failure=True), step("b", 1))
        worker = make_worker()
        end(worker, *claim(worker), status=status)
        end(worker, *claim(worker))
        assert (fresh(execution).status, root(execution).status) == ("completed", whole)

    def test_an_attempt_that_was_made_good_leaves_no_warning(self) -> None:
        execution = start(step(max_retries=1))
        worker = make_worker()
        break_down(worker, *claim(worker))
        end(worker, *claim(worker, now=NOW + seconds(10)))
        assert root(execution).status == Activity.Status.COMPLETE


def test_a_failure_stops_it_says_which_step_and_why_and_closes_the_rest_with_a_reason() -> None:
    execution = start(step("Import"), step("Sync", 1), step("Export", 2))
    worker, at = make_worker(), NOW + seconds(4)
    break_down(worker, *claim(worker), error="no such host\nmore", now=at)
    done = fresh(execution)
    assert (done.status, done.finished_at) == ("failed", at)
    assert done.error == root(execution).error == "Step “Import” failed: no such host"
    assert root(execution).status == Activity.Status.FAILED_WITH_ERROR
    assert not WorkerTask.objects.exists()
    for name in ("Sync", "Export"):
        (activity,) = attempts(execution, name)
        assert (activity.status, activity.message) == ("cancelled", "Not run: an earlier step failed.")
        assert (activity.executed_at, activity.finished_at) == (None, at)


def test_advancing_or_recovering_what_runs_or_has_ended_changes_nothing() -> None:
    execution, worker, tasks = start(step("a"), step("b", 1)), make_worker(), list[ClaimedTask]()
    for _ in range(2):
        before = everything()
        assert Execution.objects.advance([fresh(execution)], now=NOW + seconds(60)) == []
        assert Execution.objects.recover(now=NOW + seconds(60)) == 0
        assert everything() == before
        tasks += claim(worker)
    end(worker, *tasks)
    assert run_until_idle() == ["b"]
    before = everything()
    assert Execution.objects.recover(now=NOW + seconds(60)) == 0
    assert everything() == before


def test_an_execution_starts_with_all_its_tasks_and_activities() -> None:
    execution = start(step("a", 0), step("b", 1), step("c", 1))
    assert queue(execution) == {"a": "queued", "b": "waiting", "c": "waiting"}
    assert step_statuses(execution) == {"a": ["pending"], "b": ["pending"], "c": ["pending"]}
    assert root(execution).status == Activity.Status.IN_PROGRESS
    for task in WorkerTask.objects.all():
        assert task.activity.task_key == task.key
