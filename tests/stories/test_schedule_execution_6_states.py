"""Execution states: in progress, then completed, failed or cancelled, and nothing after that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from execution.scheduler import tick
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    everything,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db(transaction=True)


def cancel(execution: Execution) -> None:
    assert execution.cancel(initiator=SOMEBODY, now=NOW)


def complete() -> Execution:
    execution = start(step("a"))
    run_until_idle()
    return execution


def fail() -> Execution:
    execution = start(step("a", 0, "fail"))
    run_until_idle()
    return execution


def cancelled() -> Execution:
    execution = start(step("a"))
    cancel(execution)
    return execution


def test_the_scheduler_creates_it_in_progress_with_all_step_groups_queued() -> None:
    make_schedule(step("a"), step("b", 1), spec={"cron": ["* * * * *"]})
    tick(NOW + seconds(60))
    assert Execution.objects.get().status == Execution.Status.IN_PROGRESS
    assert WorkerTask.objects.count() == 2


def test_it_stays_in_progress_while_the_worker_advances_to_the_next_step_group() -> None:
    execution = start(step("a"), step("b", 1), step("c", 2))
    worker = make_worker()
    for index in (0, 1):
        assert (fresh(execution).status, fresh(execution).current_index) == ("in_progress", index)
        end(worker, *claim(worker))
    assert (fresh(execution).status, fresh(execution).current_index) == ("in_progress", 2)


def test_it_is_completed_when_the_last_step_group_completes() -> None:
    assert fresh(complete()).status == Execution.Status.COMPLETED


def test_it_is_failed_when_a_step_group_has_failures_that_may_not_be_continued() -> None:
    assert fresh(fail()).status == Execution.Status.FAILED


def test_it_is_cancelled_when_a_user_cancels_it_and_all_tasks_are_deleted() -> None:
    execution = start(step("a"), step("b", 1))
    cancel(execution)
    assert fresh(execution).status == Execution.Status.CANCELLED
    assert not WorkerTask.objects.exists()


def test_until_its_running_steps_have_ended_it_is_shown_as_cancelling() -> None:
    execution = start(step("a"))
    worker = make_worker()
    (task,) = claim(worker)
    cancel(execution)
    assert fresh(execution).state == "cancelling"
    end(worker, task, status="cancelled", interrupted="cancel")
    assert fresh(execution).state == "cancelled"


@pytest.mark.parametrize("ending", [complete, fail, cancelled])
def test_nothing_moves_it_after_its_end(ending: Callable[[], Execution]) -> None:
    execution = ending()
    tick(NOW)
    before = everything()
    assert fresh(execution).cancel(initiator=SOMEBODY, now=NOW) is False
    assert fresh(execution).terminate(initiator=SOMEBODY, now=NOW) is False
    assert Execution.objects.advance([fresh(execution)], now=NOW) == []
    assert Execution.objects.start([], now=NOW) == []
    run_until_idle()
    assert {model: rows for model, rows in everything().items() if model != "Worker"} == {
        model: rows for model, rows in before.items() if model != "Worker"
    }


@pytest.mark.parametrize("ending", [complete, fail, cancelled])
def test_after_its_end_no_task_and_no_open_activity_is_left(ending: Callable[[], Execution]) -> None:
    execution = ending()
    assert not WorkerTask.objects.exists()
    assert not Activity.objects.open().exists()
    assert fresh(execution).finished_at is not None
