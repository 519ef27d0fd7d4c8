"""Cancel asks, terminate does not: on tasks that wait, are queued, back off or run."""

from __future__ import annotations

import pytest

from activities.models import Activity
from execution.models import Execution, Worker, WorkerTask
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
    row,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)

pytestmark = pytest.mark.django_db
LATER = NOW + seconds(30)


def cancel(execution: Execution, reason: str = "") -> bool:
    return execution.cancel(initiator=SOMEBODY, now=LATER, reason=reason)


def terminate(execution: Execution, reason: str = "") -> bool:
    return execution.terminate(initiator=SOMEBODY, now=LATER, reason=reason)


class TestWhatHasNotStarted:
    def test_queued_and_waiting_tasks_are_closed_and_the_execution_is_cancelled_now(self) -> None:
        execution = start(step("a"), step("b"), step("c", 1))
        assert cancel(execution, reason="wrong file")
        done = fresh(execution)
        assert (done.status, done.finished_at, done.error) == ("cancelled", LATER, "wrong file")
        assert not WorkerTask.objects.exists()
        for name in "abc":
            (activity,) = attempts(execution, name)
            assert (activity.status, activity.finished_at) == ("cancelled", LATER)
            assert activity.message == "Cancelled before it started."
            assert activity.executed_at is None
        assert Activity.objects.get(pk=execution.activity_id).status == Activity.Status.CANCELLED
        assert run_until_idle(now=LATER) == []

    def test_a_retry_in_backoff_is_closed_too(self) -> None:
        execution = start(step(max_retries=3))
        worker = make_worker()
        break_down(worker, *claim(worker))
        assert queue(execution) == {"work": "queued"}
        assert cancel(execution)
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert step_statuses(execution) == {"work": ["failed_with_error", "cancelled"]}
        assert not WorkerTask.objects.exists()


class TestWhatRuns:
    def test_it_is_asked_to_stop_and_the_rest_is_closed_at_once(self) -> None:
        execution = start(step("running"), step("queued"), step("waiting", 1))
        worker = make_worker()
        (task,) = claim(worker, limit=1)
        assert cancel(execution)
        assert queue(execution) == {"running": "processing"}
        assert row(task).cancel_requested_at == LATER
        assert step_statuses(execution) == {
            "running": ["in_progress"],
            "queued": ["cancelled"],
            "waiting": ["cancelled"],
        }

    def test_the_execution_is_cancelling_until_the_last_step_ended(self) -> None:
        execution = start(step("a"), step("b"))
        worker = make_worker()
        a, b = claim(worker)
        cancel(execution)
        assert (fresh(execution).status, fresh(execution).state) == ("in_progress", "cancelling")
        end(worker, a, status="cancelled", interrupted="cancel", now=LATER)
        assert fresh(execution).state == "cancelling"
        end(worker, b, status="cancelled", interrupted="cancel", now=LATER + seconds(1))
        assert (fresh(execution).state, fresh(execution).finished_at) == ("cancelled", LATER + seconds(1))

    @pytest.mark.parametrize("status", ["complete", "complete_with_warning", "skipped"])
    def test_a_step_that_completed_before_it_saw_the_token_keeps_its_true_outcome(self, status: str) -> None:
        execution = start(step("a"), step("b", 1))
        worker = make_worker()
        (task,) = claim(worker)
        cancel(execution)
        assert end(worker, task, status=status, result={"rows": 3}, now=LATER) == {task.pk}
        (activity,) = attempts(execution, "a")
        assert (activity.status, activity.result) == (status, {"rows": 3})
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert step_statuses(execution)["b"] == ["cancelled"]

    def test_a_step_that_failed_meanwhile_says_so_and_is_not_retried(self) -> None:
        execution = start(step(max_retries=3))
        worker = make_worker()
        (task,) = claim(worker)
        cancel(execution)
        break_down(worker, task, error="no such host", now=LATER)
        (activity,) = attempts(execution)
        assert (activity.status, activity.error) == ("failed_with_error", "no such host")
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert not WorkerTask.objects.exists()

    @pytest.mark.parametrize("how", ["lost", "drained"])
    def test_a_lost_or_drained_step_ends_cancelled_and_is_not_queued_again(self, how: str) -> None:
        execution = start(step(max_retries=3))
        worker = make_worker()
        (task,) = claim(worker)
        cancel(execution)
        if how == "lost":
            Worker.objects.filter(pk=worker.pk).bury(now=LATER)
            WorkerTask.objects.recover(now=LATER)
        else:
            break_down(worker, task, interrupted="drain", error="worker stopped", now=LATER)
        assert step_statuses(execution) == {"work": ["cancelled"]}
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert not WorkerTask.objects.exists()


class TestTerminate:
    def test_it_ends_at_once_whatever_runs_and_leaves_what_has_ended(self) -> None:
        execution = start(step("done"), step("running", 1), step("queued", 1), step("waiting", 2))
        worker = make_worker()
        end(worker, *claim(worker))
        claim(worker, limit=1)
        assert terminate(execution, reason="runaway")
        done = fresh(execution)
        assert (done.status, done.finished_at, done.error) == ("cancelled", LATER, "runaway")
        assert not WorkerTask.objects.exists()
        assert step_statuses(execution) == {
            "done": ["complete"],
            "running": ["cancelled"],
            "queued": ["cancelled"],
            "waiting": ["cancelled"],
        }
        assert attempts(execution, "running")[0].message == "Terminated."

    def test_it_also_ends_what_was_only_asked_to_cancel(self) -> None:
        execution = start(step())
        claim(make_worker())
        cancel(execution, reason="first asked")
        assert terminate(execution)
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert fresh(execution).error == "first asked"


def test_asking_twice_is_asking_once() -> None:
    execution = start(step())
    claim(make_worker())
    cancel(execution, reason="first")
    before = everything()
    assert execution.cancel(initiator=SOMEBODY, now=LATER + seconds(5), reason="second")
    assert everything() == before


def test_a_cancellation_touches_no_other_execution() -> None:
    one, other = start(step("a"), step("b", 1)), start(step("a"), step("b", 1))
    cancel(one)
    assert queue(other) == {"a": "queued", "b": "waiting"}
    assert fresh(other).status == Execution.Status.IN_PROGRESS


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_who_ended_it_and_why_is_on_record(verb: str) -> None:
    execution = start(step())
    getattr(execution, verb)(initiator=SOMEBODY, now=LATER, reason="wrong file")
    record = Activity.objects.get(operation=verb)
    assert (record.target_type, record.target_id) == ("execution", str(execution.pk))
    assert (record.initiator_type, record.initiator_id, record.initiator_name) == ("user", "7", "ada")
    assert (record.message, record.status) == ("wrong file", "complete")
