"""Task execution: one claimed task from its start to the deletion of its row, however it ends."""

from __future__ import annotations

import pytest

from activities import clock
from activities.models import Activity
from execution.models import Execution, WorkerTask
from execution.scheduler import tick
from tests.base import NOW, attempts, fresh, start, step
from tests.loops import work_until_idle
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db(transaction=True)


def perform(function: str = "noop", **fields: object) -> tuple[Execution, Activity]:
    """A schedule of two steps, of which the first is this one; worked on until nothing is left."""
    execution = start(step("task", 0, function, **fields), step("next", 1))
    work_until_idle()
    return fresh(execution), attempts(execution, "task")[-1]


def test_executed_is_set_where_it_runs() -> None:
    before = clock.estimate()
    _, activity = perform()
    assert activity.executed_at is not None
    assert before <= activity.executed_at <= clock.estimate()
    assert activity.finished_at is not None
    assert activity.finished_at >= activity.executed_at


def test_the_type_of_the_task_decides_what_is_run() -> None:
    _, activity = perform("result", kwargs={"value": {"rows": 3}})
    assert (activity.target_type, activity.result) == ("python", {"rows": 3})


class TestTheActivityEndsByItsItems:
    def test_no_errors_is_success(self) -> None:
        _, activity = perform("items", kwargs={"ok": 3})
        assert (activity.status, activity.items_total, activity.items_failed) == ("complete", 3, 0)
        assert activity.items.count() == 3

    def test_some_errors_are_a_warning(self) -> None:
        execution, activity = perform("items", kwargs={"ok": 2, "failed": 1})
        assert (activity.status, activity.items_total, activity.items_failed) == (
            "complete_with_warning",
            3,
            1,
        )
        assert "1 failed" in activity.message
        assert execution.status == Execution.Status.COMPLETED

    def test_nothing_but_errors_is_a_failure(self) -> None:
        execution, activity = perform("items", kwargs={"failed": 2})
        assert (activity.status, activity.items_total, activity.items_failed) == ("failed_with_error", 2, 2)
        assert activity.error == "all 2 items failed"
        assert execution.status == Execution.Status.FAILED

    def test_each_item_keeps_its_name_outcome_and_message(self) -> None:
        _, activity = perform("items", kwargs={"ok": 1, "failed": 1})
        told = activity.items.order_by("pk").values_list("name", "outcome", "message")
        assert list(told) == [("ok 0", "ok", "it was ok"), ("failed 0", "failed", "it was failed")]


def test_a_task_without_items_is_judged_by_itself() -> None:
    assert perform("noop")[1].status == Activity.Status.COMPLETE


def test_a_task_may_say_that_there_is_nothing_to_do() -> None:
    execution, activity = perform("skip")
    assert (activity.status, activity.message) == ("skipped", "nothing to do today")
    assert execution.status == Execution.Status.COMPLETED


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

    def test_a_step_that_cannot_be_imported_says_so(self) -> None:
        _, activity = perform("no_such_function")
        assert activity.status == Activity.Status.FAILED_WITH_ERROR
        assert "cannot import 'tests.work.no_such_function'" in activity.error


class TestInTheEnd:
    def test_the_task_is_deleted(self) -> None:
        perform()
        assert not WorkerTask.objects.exists()

    def test_a_scheduled_one_advances_its_execution(self) -> None:
        execution, _ = perform()
        assert execution.current_index == 1
        assert execution.status == Execution.Status.COMPLETED
        assert execution.accounted_at == NOW
