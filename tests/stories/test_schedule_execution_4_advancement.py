"""Worker-driven step advancement: after the worker completes a task, it drives the schedule on."""

from __future__ import annotations

import pytest

from execution.models import WorkerTask
from tests.base import (
    NOW,
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


@pytest.mark.parametrize("may_continue", [True, False])
def test_activities_decide_because_the_tasks_of_failed_steps_are_gone_by_then(may_continue: bool) -> None:
    execution = start(step("a", 0, "fail", continue_on_failure=may_continue), step("b", 1))
    assert run_until_idle() == (["a", "b"] if may_continue else ["a"])
    assert fresh(execution).status == ("completed" if may_continue else "failed")
    assert not WorkerTask.objects.exists()
    (activity,) = attempts(execution, "b")
    assert activity.message == ("" if may_continue else "Not run: an earlier step failed.")
