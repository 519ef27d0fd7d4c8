"""Cancel asks, terminate does not: on tasks that wait, are queued, back off or run."""

from __future__ import annotations

import pytest

from activities.models import Activity
from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
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
    seconds,
    start,
    step,
    step_statuses,
)
from tests.invariants import violations

pytestmark = pytest.mark.django_db
LATER = NOW + seconds(30)


def cancel(execution: Execution, reason: str = "") -> bool:
    return execution.cancel(initiator=SOMEBODY, now=LATER, reason=reason)


def terminate(execution: Execution, reason: str = "") -> bool:
    return execution.terminate(initiator=SOMEBODY, now=LATER, reason=reason)


def test_what_has_not_started_is_closed_and_the_execution_is_cancelled_now() -> None:
    """Queued, waiting, or about to be tried again."""
    execution, worker = start(step("again", max_retries=3), step("a"), step("b", 1)), make_worker()
    break_down(worker, *claim(worker, limit=1))
    assert cancel(execution, reason="wrong file")
    done = fresh(execution)
    assert (done.status, done.finished_at, done.error) == ("cancelled", LATER, "wrong file")
    assert not WorkerTask.objects.exists()
    for name in ("again", "a", "b"):
        activity = attempts(execution, name)[-1]
        assert (activity.status, activity.executed_at, activity.finished_at) == ("cancelled", None, LATER)
        assert activity.message == "Cancelled before the step started."
    assert step_statuses(execution)["again"] == ["failed_with_error", "cancelled"]
    assert Activity.objects.get(pk=execution.activity_id).status == Activity.Status.CANCELLED


class TestWhatRuns:
    def test_it_is_asked_to_stop_once_the_rest_is_closed_and_the_last_one_ends_the_execution(self) -> None:
        execution, other = start(step("a"), step("b"), step("queued"), step("waiting", 1)), start(step("a"))
        worker = make_worker()
        a, b = claim(worker, limit=2)
        assert cancel(execution, reason="first")
        before = everything()
        assert execution.cancel(initiator=SOMEBODY, now=LATER + seconds(5), reason="second")
        assert everything() == before
        assert queue(execution) == {"a": "processing", "b": "processing"}
        assert row(a).cancel_requested_at == LATER
        rest = {"queued": ["cancelled"], "waiting": ["cancelled"]}
        assert step_statuses(execution) == {"a": ["in_progress"], "b": ["in_progress"]} | rest
        end(worker, a, status="cancelled", interrupted="cancel", now=LATER)
        assert (fresh(execution).status, fresh(execution).state) == ("in_progress", "cancelling")
        end(worker, b, status="cancelled", interrupted="cancel", now=LATER + seconds(1))
        done = fresh(execution)
        assert (done.state, done.finished_at, done.error) == ("cancelled", LATER + seconds(1), "first")
        assert queue(other) == {"a": "queued"}

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


def stop(execution: Execution, by: str) -> bool:
    """By a request, or because it took too long."""
    return cancel(execution, reason="enough") if by == "cancel" else execution.time_out(now=LATER)


class TestCleanUp:
    """What runs `always` after the first group runs unless the execution is terminated."""

    PLAN = (step("a"), step("b", 1), step("tidy", 2, run_if="always"), step("alert", 3, run_if="failure"))
    LAST = step("report", 4, run_if="always")

    @pytest.mark.parametrize("is_processing", [False, True])
    @pytest.mark.parametrize(
        ("by", "ran", "status"),
        [
            ("cancel", ["tidy", "report"], "cancelled"),
            ("timeout", ["tidy", "alert", "report"], "failed"),  # which is a failure
        ],
    )
    def test_it_runs_in_order_once_what_was_running_has_ended(
        self, is_processing: bool, by: str, ran: list[str], status: str
    ) -> None:
        execution, worker = start(*self.PLAN, self.LAST, timeout_seconds=10), make_worker()
        tasks = claim(worker) if is_processing else []
        assert stop(execution, by)
        assert step_statuses(execution)["b"] == ["cancelled"]
        if tasks:
            assert set(queue(execution)) == {"a", *ran}
            assert not claim(worker, now=LATER)
            end(worker, *tasks, status="cancelled", interrupted="cancel", now=LATER)
        seen = []
        while tasks := claim(worker, now=LATER):
            assert (fresh(execution).state, [row(task).cancel_requested_at for task in tasks]) == (
                "cancelling",
                [None],
            )
            seen += [task.name for task in tasks]
            end(worker, *tasks, now=LATER)
        assert (seen, fresh(execution).status) == (ran, status)
        assert fresh(execution).error == ("enough" if by == "cancel" else "Timed out after 10s.")
        assert all(step_statuses(execution)[name] == ["complete"] for name in ran)
        invoke(LATER)
        assert not violations()

    def test_what_has_begun_of_it_goes_on_is_tried_again_and_recovered(self) -> None:
        execution = start(step("a"), step("tidy", 1, run_if="always", max_retries=1), step("rest", 1))
        worker, other = make_worker(), make_worker(LATER)
        end(worker, *claim(worker))
        tidy, rest = claim(worker)
        cancel(execution)
        assert (row(tidy).cancel_requested_at, row(rest).cancel_requested_at) == (None, LATER)
        break_down(worker, tidy, rest, now=LATER)
        before = everything()
        assert cancel(execution, reason="again")
        assert everything() == before
        (tidy,) = claim(worker, now=LATER + seconds(60))
        Worker.objects.filter(pk=worker.pk).bury(now=LATER + seconds(60))
        WorkerTask.objects.recover(now=LATER + seconds(60))
        end(other, *claim(other, now=LATER + seconds(60)), now=LATER + seconds(60))
        assert step_statuses(execution)["tidy"] == ["failed_with_error", "failed_with_error", "complete"]
        assert fresh(execution).status == Execution.Status.CANCELLED

    def test_what_takes_its_place_starts_after_it(self) -> None:
        first, worker = start(*self.PLAN, overlap="cancel_other"), make_worker()
        tasks = claim(worker)
        assert first.schedule is not None
        trigger(first.schedule, initiator=SOMEBODY, now=LATER)
        for name in ("a", "tidy"):
            assert [task.name for task in tasks] == [name]
            assert fresh(first).state == "cancelling"
            end(worker, *tasks, now=LATER)
            invoke(LATER)
            assert first.schedule.executions.count() == (1 if name == "a" else 2)
            tasks = claim(worker, now=LATER)

    def test_a_step_of_the_first_group_cleans_up_after_nothing(self) -> None:
        execution, worker = start(step("a", run_if="always"), step("b", run_if="always")), make_worker()
        (task,) = claim(worker, limit=1)
        cancel(execution)
        assert row(task).cancel_requested_at == LATER
        assert step_statuses(execution)["b"] == ["cancelled"]

    @pytest.mark.parametrize("is_running", [False, True])
    def test_terminate_ends_it_too(self, is_running: bool) -> None:
        execution, worker = start(*self.PLAN), make_worker()
        claim(worker)
        if is_running:
            end(worker, *claim(worker), now=LATER)
            cancel(execution)
            claim(worker, now=LATER)
        assert terminate(execution)
        assert step_statuses(execution)["tidy"] == ["cancelled"]
        assert fresh(execution).status == Execution.Status.CANCELLED
        assert not WorkerTask.objects.exists()

    def test_a_plan_that_cannot_be_read_promises_nothing(self) -> None:
        execution = start(*self.PLAN)
        damaged = {"steps": [{"index": 0}, {"index": 1, "run_if": "always"}]}
        Execution.objects.filter(pk=execution.pk).update(plan=damaged)
        assert cancel(execution)
        assert fresh(execution).status == Execution.Status.CANCELLED


class TestTerminate:
    @pytest.mark.parametrize("is_asked", [False, True])
    def test_it_ends_at_once_whatever_runs_and_leaves_what_has_ended(self, is_asked: bool) -> None:
        """Also what was asked to stop before."""
        execution = start(step("done"), step("running", 1), step("queued", 1), step("waiting", 2))
        worker = make_worker()
        end(worker, *claim(worker))
        claim(worker, limit=1)
        assert not is_asked or cancel(execution, reason="runaway")
        assert terminate(execution, reason="" if is_asked else "runaway")
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


@pytest.mark.parametrize("verb", ["cancel", "terminate"])
def test_who_ended_it_and_why_is_on_record(verb: str) -> None:
    execution = start(step())
    getattr(execution, verb)(initiator=SOMEBODY, now=LATER, reason="wrong file")
    record = Activity.objects.get(operation=verb)
    assert (record.target_type, record.target_id) == ("execution", str(execution.pk))
    assert (record.initiator_type, record.initiator_id, record.initiator_name) == ("user", "7", "ada")
    assert (record.message, record.status) == ("wrong file", "complete")
