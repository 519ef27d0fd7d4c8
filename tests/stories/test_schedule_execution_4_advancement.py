"""Worker-driven step advancement: after the worker completes a task, it drives the schedule on."""

from __future__ import annotations

import pytest

from activities.models import Activity
from execution.models import WorkerTask
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
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

pytestmark = pytest.mark.django_db


def test_a_task_that_is_not_linked_to_an_execution_is_done() -> None:
    WorkerTask.objects.enqueue([step("job")], initiator=SOMEBODY, now=NOW)
    assert run_until_idle() == ["job"]
    assert Activity.objects.get(target_name="job").status == "complete"


def test_without_a_failure_it_goes_on_to_the_next_step_index_or_to_the_end() -> None:
    """Each task is deleted when it is done; its activity persists as audit record."""
    execution = start(step("AD", 0), step("LDAP", 0), step("next", 1), step("beside", 1), step("last", 2))
    worker = make_worker()
    first, second = claim(worker)
    end(worker, first)
    assert queue(execution) == {
        "LDAP": "processing",
        "next": "waiting",
        "beside": "waiting",
        "last": "waiting",
    }
    end(worker, second)
    assert queue(execution) == {"next": "queued", "beside": "queued", "last": "waiting"}
    assert fresh(execution).current_index == 1
    end(worker, *claim(worker))
    end(worker, *claim(worker), now=NOW + seconds(5))
    assert (fresh(execution).status, fresh(execution).finished_at) == ("completed", NOW + seconds(5))
    assert not WorkerTask.objects.exists()
    assert set(map(tuple, step_statuses(execution).values())) == {("complete",)}


class TestFailures:
    """Activities decide, because the tasks are gone by then; of each step only the last attempt counts."""

    def test_a_failed_step_that_may_continue_leads_to_the_next_step(self) -> None:
        execution = start(step("a", 0, "fail", continue_on_failure=True), step("b", 1))
        assert run_until_idle() == ["a", "b"]
        assert fresh(execution).status == "completed"

    def test_a_failed_step_that_may_not_fails_the_execution_and_what_waits_is_not_run(self) -> None:
        execution = start(step("Full Import", 0, "fail", kwargs={"message": "no such host"}), step("b", 1))
        run_until_idle()
        assert fresh(execution).status == "failed"
        assert fresh(execution).error == "Step “Full Import” failed: RuntimeError: no such host"
        assert not WorkerTask.objects.exists()
        (activity,) = attempts(execution, "b")
        assert (activity.status, activity.message) == ("cancelled", "Not run: an earlier step failed.")
