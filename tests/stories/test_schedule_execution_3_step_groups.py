"""Step group queuing: steps with the same StepIndex form a parallel group and execute concurrently."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError

from activities.models import Activity
from execution.loops.manual_runs import trigger
from execution.models import Execution, WorkerTask
from schedules.models import Step
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    claim,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    start,
    step,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_steps_at_one_index_are_parallel_and_the_next_index_follows() -> None:
    start(step("AD", 0), step("LDAP", 0), step("HR", 0), step("later", 1))
    assert [task.name for task in claim(make_worker())] == ["AD", "LDAP", "HR"]


def test_each_step_becomes_a_task_with_what_the_step_says() -> None:
    said: dict[str, Any] = {"continue_on_failure": True, "timeout_seconds": 90, "on_crash": "fail"}
    said |= {"max_retries": 2, "retry_seconds": 5}
    execution = start(step("Export", 0, "result", kwargs={"value": 7}, pool="ldap", **said))
    task = WorkerTask.objects.get()
    assert (task.activity.target_type, task.activity.target_name) == ("python", "Export")
    assert (task.execution, task.name, task.step_index, task.pool) == (execution, "Export", 0, "ldap")
    assert {name: task.step[name] for name in said} == said
    assert task.step["config"]["kwargs"] == {"value": 7}


def test_a_kind_of_step_that_does_not_exist_here_cannot_be_defined() -> None:
    with pytest.raises(ValidationError, match="Unknown step type"):
        make_schedule(step() | {"step_type": "legacy_import"})


def test_one_that_is_not_implemented_any_more_is_never_skipped_silently() -> None:
    """The seed logs a warning and skips it: the execution would look as if all had been done."""
    schedule = make_schedule(step("a"), step("b", 1))
    Step.objects.filter(name="a").update(step_type="legacy_import")
    execution = Execution.objects.get(occurrence=trigger(schedule, initiator=SOMEBODY, now=NOW))
    run_until_idle()
    assert fresh(execution).status == "failed"
    (activity,) = attempts(execution, "a")
    assert activity.status == Activity.Status.FAILED_WITH_ERROR
    assert "legacy_import" in activity.error
    assert "cannot run on worker" in activity.error
