"""Worker-driven step advancement: after the worker completes a task, it drives the schedule on."""

from __future__ import annotations

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    fresh,
    make_worker,
    queue,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_task_is_deleted_and_its_activity_persists_as_audit_record() -> None:
    execution = start(step("a"))
    worker = make_worker()
    end(worker, *claim(worker))
    assert not WorkerTask.objects.exists()
    assert step_statuses(execution) == {"a": ["complete"]}


def test_a_task_that_is_not_linked_to_an_execution_is_done() -> None:
    WorkerTask.objects.enqueue([step("job")], initiator=SOMEBODY, now=NOW)
    assert run_until_idle() == ["job"]
    assert Activity.objects.get(target_name="job").status == "complete"


def test_while_tasks_remain_at_this_step_index_the_execution_waits_for_them() -> None:
    execution = start(step("AD", 0), step("LDAP", 0), step("next", 1))
    worker = make_worker()
    first, _ = claim(worker)
    end(worker, first)
    assert queue(execution) == {"LDAP": "processing", "next": "waiting"}


class TestTheLastTaskOfTheGroup:
    """No activity failed: on to the next step index, or to the end."""

    def test_the_next_step_group_goes_from_waiting_to_queued(self) -> None:
        execution = start(step("a", 0), step("b", 1), step("c", 1), step("d", 2))
        worker = make_worker()
        end(worker, *claim(worker))
        assert queue(execution) == {"b": "queued", "c": "queued", "d": "waiting"}
        assert fresh(execution).current_index == 1

    def test_the_worker_picks_up_the_newly_queued_tasks(self) -> None:
        start(step("a", 0), step("b", 1), step("c", 1))
        assert run_until_idle() == ["a", "b", "c"]

    def test_without_a_next_step_the_execution_is_complete(self) -> None:
        execution = start(step("a"))
        worker = make_worker()
        end(worker, *claim(worker), now=NOW + seconds(5))
        assert (fresh(execution).status, fresh(execution).finished_at) == ("completed", NOW + seconds(5))


class TestFailures:
    """Activities decide, because the tasks are gone by then; of each step only the last attempt counts."""

    @pytest.mark.parametrize("status", ["failed_with_error", "complete_with_error", "cancelled"])
    def test_these_activities_have_failed(self, status: str) -> None:
        execution = start(step("a"), step("b", 1))
        worker = make_worker()
        end(worker, *claim(worker), status=status)
        assert fresh(execution).status == Execution.Status.FAILED

    def test_an_attempt_that_failed_is_forgotten_when_a_later_one_succeeds(self) -> None:
        execution = start(step("a", max_retries=1), step("b", 1))
        worker = make_worker()
        break_down(worker, *claim(worker))
        end(worker, *claim(worker, now=NOW + seconds(10)))
        assert queue(execution) == {"b": "queued"}

    def test_a_failed_step_that_may_continue_leads_to_the_next_step(self) -> None:
        execution = start(step("a", 0, "fail", continue_on_failure=True), step("b", 1))
        assert run_until_idle() == ["a", "b"]
        assert fresh(execution).status == Execution.Status.COMPLETED

    def test_a_failed_step_that_may_not_fails_the_execution_with_its_name_and_reason(self) -> None:
        execution = start(step("Full Import", 0, "fail", kwargs={"message": "no such host"}), step("b", 1))
        run_until_idle()
        assert fresh(execution).status == Execution.Status.FAILED
        assert fresh(execution).error == "Step “Full Import” failed: RuntimeError: no such host"

    def test_the_remaining_waiting_tasks_are_deleted_and_their_activities_say_why(self) -> None:
        execution = start(step("a", 0, "fail"), step("b", 1), step("c", 2))
        run_until_idle()
        assert not WorkerTask.objects.exists()
        for name in ("b", "c"):
            (activity,) = attempts(execution, name)
            assert (activity.status, activity.message) == ("cancelled", "Not run: an earlier step failed.")
