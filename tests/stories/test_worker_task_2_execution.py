"""Task execution: one claimed task from its start to the deletion of its row, however it ends."""

from __future__ import annotations

import pytest

from activities.models import Activity
from database import clock
from execution.loops.scheduler import tick
from execution.models import Execution, WorkerTask
from tests.base import NOW, attempts, fresh, start, step
from tests.loops import work_until_idle
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db(transaction=True)


def perform(function: str = "noop", **fields: object) -> tuple[Execution, Activity]:
    """A schedule of two steps, of which the first is this one; worked on until nothing is left."""
    execution = start(step("task", 0, function, **fields), step("next", 1))
    work_until_idle()
    return fresh(execution), attempts(execution, "task")[-1]


def test_it_is_run_by_its_type_deleted_and_its_execution_advanced() -> None:
    before = clock.estimate()
    execution, activity = perform("result", kwargs={"value": {"rows": 3}})
    assert (activity.target_type, activity.result) == ("python", {"rows": 3})
    assert activity.executed_at is not None
    assert activity.finished_at is not None
    assert before <= activity.executed_at <= activity.finished_at <= clock.estimate()
    assert not WorkerTask.objects.exists()
    assert (execution.current_index, execution.status, execution.accounted_at) == (1, "completed", NOW)


@pytest.mark.parametrize(
    ("items", "allowed", "status", "execution_status"),
    [
        ({}, 0, "complete", "completed"),
        ({"ok": 3}, 0, "complete", "completed"),
        ({"ok": 2, "failed": 1}, 34, "complete_with_warning", "completed"),
        ({"ok": 2, "failed": 1}, 33, "complete_with_error", "failed"),
        ({"failed": 2}, 100, "failed_with_error", "failed"),
    ],
    ids=["none", "no errors", "some errors", "more errors than allowed", "nothing but errors"],
)
def test_the_activity_ends_by_its_items(
    items: dict[str, int], allowed: int, status: str, execution_status: str
) -> None:
    execution, activity = perform("items", kwargs=items, max_failed_percent=allowed)
    failed = items.get("failed", 0)
    assert (activity.status, execution.status) == (status, execution_status)
    assert (activity.items_total, activity.items_failed) == (sum(items.values()), failed)
    told = activity.items.order_by("pk").values_list("name", "outcome", "message")
    assert list(told) == [
        (f"{outcome} {number}", outcome, f"it was {outcome}")
        for outcome, count in items.items()
        for number in range(count)
    ]
    assert status != "complete_with_warning" or "1 failed" in activity.message
    assert (
        status != "complete_with_error"
        or activity.error == "1 of 3 items failed, but the step allows at most 33 %"
    )
    assert status != "failed_with_error" or activity.error == "all 2 items failed"


class TestAnException:
    """The activity is failed safely: on three levels, so that it is never stuck in progress."""

    def test_level_1_it_is_failed_with_the_error_and_where_it_came_from(self) -> None:
        execution, activity = perform("fail", kwargs={"message": "no such host"})
        assert (activity.status, activity.error) == ("failed_with_error", "RuntimeError: no such host")
        assert "raise RuntimeError(message)" in activity.traceback
        assert execution.status == Execution.Status.FAILED

    def test_level_2_an_outcome_that_the_database_refuses_is_failed_without_it(self) -> None:
        with database_that_refuses():
            execution, activity = perform("result", kwargs={"value": "poison"}, max_retries=3)
        assert activity.status == Activity.Status.FAILED_WITH_ERROR
        assert "The database refused the outcome" in activity.error
        assert execution.status == Execution.Status.FAILED

    def test_level_3_if_that_is_refused_too_a_fresh_connection_records_it(self) -> None:
        with database_that_refuses("NEW.finished_at IS NOT NULL", this_connection_only=True):
            execution, activity = perform()
        assert activity.status == Activity.Status.FAILED_WITH_ERROR
        assert not WorkerTask.objects.filter(name="task").exists()
        tick(NOW)
        assert fresh(execution).status == Execution.Status.FAILED
