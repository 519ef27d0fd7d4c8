"""Executions and jobs that are done once more, whatever has become of them and of JIM meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from execution import failure
from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.models import Execution, Job, WorkerTask
from schedules.models import Occurrence, Refused, Schedule
from schedules.registry import failure_policies
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db


def submit(*steps: dict[str, Any], **fields: Any) -> Execution:
    return Execution.objects.submit("Group", steps or [step("a")], initiator=SOMEBODY, now=NOW, **fields)


def fail(execution: Execution) -> Execution:
    """Its steps that are ready break down."""
    worker = make_worker()
    break_down(worker, *claim(worker))
    return fresh(execution)


def again(execution: Execution, **fields: Any) -> Execution:
    started = fresh(execution).retry(initiator=SOMEBODY, now=NOW, **fields)
    assert started is not None
    return started


class TestPlannedBeforeAnUpgrade:
    """Lines that lack what lines say today."""

    NEW = ("run_if", "priority", "limit_keys", "retry_factor", "retry_cap_seconds", "retry_on", "resources")

    def aged(self, line: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in line.items() if name not in self.NEW}

    def age(self, execution: Execution) -> Execution:
        steps = [self.aged(line) for line in execution.plan["steps"]]
        Execution.objects.filter(pk=execution.pk).update(plan={"steps": steps})
        for task in WorkerTask.objects.filter(execution=execution):
            WorkerTask.objects.filter(pk=task.pk).update(step=self.aged(task.step))
        return fresh(execution)

    @pytest.mark.parametrize("make", [start, submit])
    def test_an_execution_is_retried_and_so_is_a_job(self, make: Any) -> None:
        execution = self.age(make(step("a"), step("b", 1)))
        worker = make_worker()
        end(worker, *claim(worker))
        assert fail(execution).status == "failed"
        second = again(execution)
        assert run_until_idle() == ["b"]
        assert fresh(second).status == "completed"
        [task] = enqueue(step("job"))
        WorkerTask.objects.filter(pk=task.pk).update(step=self.aged(task.step))
        break_down(worker, *claim(worker))
        job = Job.find(task.key)
        assert job is not None
        job.retry(initiator=SOMEBODY, now=NOW)
        assert run_until_idle() == ["job"]


@pytest.mark.parametrize("plan", [[], {}, {"steps": None}, {"steps": ["a"]}, {"steps": [{"name": "a"}]}])
def test_a_damaged_plan_is_told_who_retries_it_and_stops_nobody_else(plan: Any) -> None:
    execution = fail(start(step("a"), overlap="buffer_all"))
    assert execution.schedule is not None
    running = trigger(execution.schedule, initiator=SOMEBODY, now=NOW)
    assert execution.retry(initiator=SOMEBODY, now=NOW) is None
    Execution.objects.filter(pk=execution.pk).update(plan=plan)
    with pytest.raises(Refused, match="cannot be read"):
        again(execution, whole=True)
    Execution.objects.get(occurrence=running).terminate(initiator=SOMEBODY, now=NOW)
    other = Occurrence.manual(make_schedule(), initiator=SOMEBODY, now=NOW)
    other.save()
    invoke(NOW)
    assert fresh(other).status == "started"
    repeated = Occurrence.objects.get(retry_of=execution.pk)
    assert (repeated.status, "cannot be read" in repeated.reason) == ("skipped", True)


def test_a_group_is_retried_once_for_each_key_and_has_as_much_time_as_before() -> None:
    group = fail(submit(timeout_seconds=60))
    first = again(group, key="a")
    assert first.timeout_at == NOW + seconds(60)
    assert again(group, key="a") == first
    with pytest.raises(Refused, match="another request"):
        again(group, key="a", whole=True)
    assert again(group, key="b") != first
    assert group.retries.count() == 2


def test_what_was_skipped_for_good_reason_is_kept_also_by_a_retry_of_a_retry() -> None:
    group = submit(step("a"), step("b", 1))
    worker = make_worker()
    end(worker, *claim(worker), status="skipped")
    second = again(fail(group))
    again(fail(second))
    assert run_until_idle() == ["b"]


def test_a_policy_that_decided_for_one_run_is_asked_again_in_the_next() -> None:
    failure.register("mine", failure.Always("cancelled"), title="Mine")
    try:
        group = submit(step("a"), step("b", 1), step("clean", 2, run_if="always"), on_failure="mine")
        assert fail(group).on_failure == "stop"
        run_until_idle()
        assert again(group).on_failure == "mine"
    finally:
        del failure.policies["mine"], failure_policies["mine"]


def test_the_result_is_that_of_the_last_step_also_if_it_was_kept() -> None:
    execution = fail(start(step("a"), step("b", 1), on_failure="continue"))
    worker = make_worker()
    end(worker, *claim(worker), result="of b")
    second = again(execution)
    end(worker, *claim(worker), result="of a")
    invoke(NOW)
    assert fresh(second).status == "completed"
    assert Schedule.objects.get().last_result == "of b"
