"""Processing → deleted or queued again. Each attempt has one accepted outcome; all others change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from activities.models import Activity
from execution.loops import finishing
from execution.models import Execution, Worker, WorkerTask
from execution.models.attempt import Finish
from execution.queue import finish
from execution.queue.request import ClaimRequest
from execution.steps.outcome import Outcome
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
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db


def test_the_task_is_deleted_and_its_activity_tells_the_outcome() -> None:
    execution = start(step())
    worker = make_worker()
    (task,) = claim(worker)
    told: dict[str, Any] = {
        "message": "3 of 4",
        "result": {"rows": [1, 2]},
        "items_total": 4,
        "items_failed": 1,
    }
    told |= {"error": "one is wrong", "traceback": "line 1\nline 2", "status": "complete_with_warning"}
    at = NOW + seconds(3)
    assert end(worker, task, now=at, **told) == {task.pk}
    assert not WorkerTask.objects.exists()
    (activity,) = attempts(execution)
    assert {name: getattr(activity, name) for name in told} == told
    assert (activity.executed_at, activity.finished_at, activity.worker_id) == (at, at, worker.pk)


class TestRefused:
    """The fence is (task, attempt, worker): whoever lost the place changes nothing."""

    LOST = ("ended", "of another worker", "an earlier attempt", "recovered", "recovered and claimed again")

    @pytest.mark.parametrize("how", [*LOST, "terminated", "released"])
    def test_an_outcome_of_what_is_no_longer_held(self, how: str) -> None:
        execution = start(step(max_retries=1), step("other", 1))
        worker = writer = make_worker()
        (task,) = claim(worker)
        match how:
            case "ended":
                end(worker, task)
            case "of another worker":
                writer = make_worker()
            case "an earlier attempt":
                break_down(worker, task)
                (second,) = claim(worker, now=NOW + seconds(10))
                assert (second.pk, second.attempt) == (task.pk, 2)
            case "recovered":
                self.lose(worker)
            case "recovered and claimed again":
                self.lose(worker)
                claim(make_worker())
            case "terminated":
                execution.terminate(initiator=SOMEBODY, now=NOW)
            case "released":
                WorkerTask.objects.release([task], worker_id=worker.pk)
        before = everything()
        assert end(writer, task, result="late", now=NOW + seconds(100)) == set()
        assert break_down(writer, task, now=NOW + seconds(100)) == set()
        assert break_down(writer, task, now=NOW + seconds(100), interrupted="drain") == set()
        assert everything() == before

    def test_the_good_ones_of_a_batch_are_accepted_all_the_same(self) -> None:
        execution = start(step("good"), step("stale"))
        worker = make_worker()
        good, stale = claim(worker)
        WorkerTask.objects.filter(pk=stale.pk).update(attempt=2)
        assert end(worker, good, stale) == {good.pk}
        assert step_statuses(execution) == {"good": ["complete"], "stale": ["in_progress"]}

    def test_they_are_counted_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        start(step("a"), step("b"))
        worker = make_worker()
        tasks = claim(worker)
        self.lose(worker)
        finishing.finish([Finish(task, outcome()) for task in tasks], worker_id=worker.pk, now=NOW)
        assert fresh(worker).stale_refused == 2
        assert caplog.text.count("stale outcome refused") == 2

    def lose(self, worker: Worker) -> None:
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        WorkerTask.objects.recover(now=NOW)


def test_a_late_outcome_counts_as_long_as_nobody_recovered_the_task() -> None:
    execution = start(step())
    worker = make_worker()
    (task,) = claim(worker)
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)
    assert end(worker, task, now=NOW + timedelta(hours=1)) == {task.pk}
    assert step_statuses(execution) == {"work": ["complete"]}


@pytest.mark.parametrize(
    ("taken", "is_told"), [(["b", "c"], False), (["b"], True), ([], True)], ids=["all", "some", "none"]
)
def test_others_are_woken_for_what_is_left_of_the_next_group_and_not_for_what_was_claimed_of_it(
    taken: list[str], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(finish, "wake", told.append)
    execution, worker = start(step("a"), step("b", 1), step("c", 1)), make_worker()
    (first,) = claim(worker)

    def seats() -> ClaimRequest:
        assert queue(execution) == {"b": "queued", "c": "queued"}
        return ClaimRequest(worker.pk, [], NOW, {"thread": len(taken), "process": 0})

    WorkerTask.objects.finish([Finish(first, outcome())], worker_id=worker.pk, now=NOW, claims=seats)
    assert told == ["jim_tasks"] * is_told
    assert queue(execution) == {name: "processing" if name in taken else "queued" for name in ("b", "c")}


class TestRetries:
    def test_the_same_row_is_queued_again_after_its_delay_as_the_next_attempt(self) -> None:
        execution = start(step(max_retries=3, retry_seconds=10))
        worker = make_worker()
        (task,) = claim(worker)
        break_down(worker, task)
        again = row(task)
        assert (again.status, again.attempt, again.worker_id, again.claimed_at) == ("queued", 2, None, None)
        assert (again.failures, again.crashes) == (1, 0)
        assert again.available_at == NOW + seconds(10)
        assert fresh(execution).status == Execution.Status.IN_PROGRESS
        assert step_statuses(execution) == {"work": ["failed_with_error", "pending"]}
        (second,) = claim(worker, now=NOW + seconds(10))
        assert (second.work.key, second.work.attempt) == (task.work.key, 2)
        assert step_statuses(execution) == {"work": ["failed_with_error", "in_progress"]}

    def test_each_attempt_has_its_activity_linked_to_the_one_before(self) -> None:
        execution = start(step(max_retries=2))
        worker = make_worker()
        for number in range(3):
            now = NOW + seconds(600 * number)
            break_down(worker, *claim(worker, now=now), now=now)
        first, second, third = attempts(execution)
        assert [a.attempt for a in (first, second, third)] == [1, 2, 3]
        assert (first.retry_of, second.retry_of, third.retry_of) == (None, first, second)
        for activity in (second, third):
            for name in ("task_key", "parent", "target_name", "line", "step_index", "initiator_name"):
                assert getattr(activity, name) == getattr(first, name)
        assert third.chain() == [first, second, third]

    @pytest.mark.parametrize(
        ("status", "can_retry"),
        [
            *((status, True) for status in ("complete", "complete_with_warning", "skipped", "cancelled")),
            *((status, False) for status in ("failed_with_error", "complete_with_error")),
        ],
    )
    def test_only_failures_that_can_be_cured_are_retried(self, status: str, can_retry: bool) -> None:
        start(step(max_retries=3))
        worker = make_worker()
        end(worker, *claim(worker), status=status, can_retry=can_retry)
        assert not WorkerTask.objects.exists()

    def test_one_that_completed_with_errors_is_retried_like_a_failure_and_fails_for_good(self) -> None:
        execution = start(step(max_retries=1, retry_seconds=0, retry_on=["items failed"]), step("next", 1))
        worker = make_worker()
        ending: dict[str, Any] = {"status": "complete_with_error", "can_retry": True}
        for _ in range(2):
            end(worker, *claim(worker), error="7 of 9 items failed", **ending)
        told = [(each.status, each.permanently_failed) for each in attempts(execution, "work")]
        assert told == [("complete_with_error", False), ("complete_with_error", True)]
        assert fresh(execution).status == Execution.Status.FAILED
        assert fresh(execution).error == "Step “work” completed with errors: 7 of 9 items failed"
        assert step_statuses(execution)["next"] == ["cancelled"]

    @pytest.mark.parametrize("failure", [None, "timeout"])
    def test_failures_crashes_and_drains_have_budgets_of_their_own(self, failure: str | None) -> None:
        """A timeout is a failure; a drain costs nothing."""
        execution = start(step(max_retries=1, retry_seconds=0))
        worker = make_worker()
        for interrupted in ("lost", "drain", failure, "lost", "drain"):
            break_down(worker, *claim(worker), interrupted=interrupted)
        task = WorkerTask.objects.get()
        assert (task.attempt, task.failures, task.crashes, task.available_at) == (6, 1, 2, NOW)
        break_down(worker, *claim(worker))
        assert fresh(execution).status == Execution.Status.FAILED
        assert step_statuses(execution) == {"work": ["failed_with_error"] * 6}


class TestTheDatabaseRefuses:
    """Three levels, so that no activity stays in progress because of its own outcome."""

    @pytest.fixture(autouse=True)
    def refusing(self) -> Iterator[None]:
        with database_that_refuses():
            yield

    @pytest.mark.parametrize(
        ("retries", "fields"), [(3, {}), (0, {"status": "failed_with_error", "can_retry": True})]
    )
    def test_the_refused_outcome_becomes_a_failure_that_says_so_and_the_others_stay(
        self, retries: int, fields: dict[str, Any]
    ) -> None:
        execution = start(step("a"), step("bad", max_retries=retries), step("b"))
        worker = make_worker()
        a, bad, b = claim(worker)
        poisoned = Finish(bad, outcome(**{"result": "poison"} | fields))
        finishing.finish(
            [Finish(a, outcome(result=1)), poisoned, Finish(b, outcome(result=2))],
            worker_id=worker.pk,
            now=NOW,
        )
        (activity,) = attempts(execution, "bad")
        assert activity.status == Activity.Status.FAILED_WITH_ERROR
        assert "The database refused the outcome: this row is refused" in activity.error
        assert activity.result is None
        assert [attempts(execution, name)[0].result for name in "ab"] == [1, 2]
        assert fresh(execution).status == Execution.Status.FAILED
        assert not WorkerTask.objects.exists()
        assert fresh(worker).stale_refused == 0

    def test_an_outcome_that_is_abandoned_is_a_failure_for_good(self) -> None:
        execution = start()
        worker = make_worker()
        [task] = claim(worker)
        WorkerTask.objects.abandon(task, "refused", worker_id=worker.pk, now=NOW)
        (activity,) = attempts(execution)
        assert (activity.status, activity.permanently_failed) == ("failed_with_error", True)


def test_after_an_ambiguous_commit_only_what_is_still_held_is_repeated() -> None:
    """An error at COMMIT does not say whether it was carried out."""
    start(step("recorded"), step("retried", max_retries=1), step("lost answer"))
    worker = make_worker()
    tasks = claim(worker)
    recorded, retried, held = tasks
    end(worker, recorded)
    break_down(worker, retried)
    claim(worker, now=NOW + seconds(10))
    finishes = [Finish(task, outcome()) for task in tasks]
    assert [f.task for f in finishing.still_held(finishes, worker_id=worker.pk)] == [held]


def outcome(status: str = "complete", **fields: Any) -> Outcome:
    return Outcome(status=status, executed_at=NOW, finished_at=NOW, **fields)
