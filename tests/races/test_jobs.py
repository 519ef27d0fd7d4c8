"""The same job asked for, retried or cancelled by several at the same moment."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

import pytest

from activities.models import Activity
from execution.models import Job, WorkerTask
from execution.models.attempt import ClaimedTask
from schedules.models import Refused
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    enqueue,
    fresh,
    make_worker,
    run_until_idle,
    start,
    step,
)
from tests.races.meeting import at_once, queue_up

pytestmark = pytest.mark.django_db(transaction=True)
ROUNDS = 3


def ask(**request: Any) -> uuid.UUID:
    [key] = WorkerTask.objects.enqueue([step("job") | request], initiator=SOMEBODY, now=NOW)
    return key


def found(key: uuid.UUID) -> Job:
    job = Job.find(key)
    assert job is not None
    return job


def test_twins_and_requests_that_are_sent_several_times_are_queued_once() -> None:
    for number in range(ROUNDS):
        keys = at_once(*[partial(ask, dedup_key=f"report {number}")] * 4)
        assert sorted(found(key).state for key in keys) == ["queued", "skipped", "skipped", "skipped"]
        assert len(set(at_once(*[partial(ask, idempotency_key=f"key {number}")] * 4))) == 1
    assert WorkerTask.objects.count() == 2 * ROUNDS
    assert Activity.objects.count() == 5 * ROUNDS


def test_a_job_retried_by_several_is_queued_once() -> None:
    for _ in range(ROUNDS):
        key = ask()
        worker = make_worker()
        break_down(worker, *claim(worker))
        outcomes = at_once(*[partial(found(key).retry, initiator=SOMEBODY, now=NOW)] * 3)
        assert sum(isinstance(outcome, Refused) for outcome in outcomes) == 2
        assert run_until_idle() == ["job"]
        assert found(key).activity.attempt == 2


def test_cancel_and_claim() -> None:
    """Whoever is first: it never runs unnoticed, and never ends twice."""
    for _ in range(ROUNDS):
        [task] = enqueue(step("job"))
        worker = make_worker()
        cancelled, claimed = at_once(
            partial(found(task.key).cancel, initiator=SOMEBODY, now=NOW), partial(claim, worker)
        )
        assert cancelled is True
        held: list[ClaimedTask] = claimed
        if held:
            assert found(task.key).state == "cancelling"
            end(worker, *held, status="cancelled", interrupted="cancel")
        assert found(task.key).state == "cancelled"
        assert Activity.objects.filter(task_key=task.key).count() == 1


def test_reprioritise_and_claim() -> None:
    for _ in range(ROUNDS):
        [task] = enqueue(step("job"))
        worker = make_worker()
        changed, claimed = at_once(
            partial(task.prioritise, 5, initiator=SOMEBODY, now=NOW), partial(claim, worker)
        )
        row = WorkerTask.objects.get(pk=task.pk)
        assert row.priority == (5 if changed else 0)
        end(worker, *(claimed or claim(worker)))
        assert found(task.key).state == "complete"


@pytest.mark.parametrize("key", ["dedup_key", "idempotency_key"])
def test_batches_with_the_same_keys_in_another_order(key: str) -> None:
    for number in range(ROUNDS):
        batch = [step(f"job {n}") | {key: f"{number}/{n}"} for n in range(100)]
        asked = [
            partial(WorkerTask.objects.enqueue, jobs, initiator=SOMEBODY, now=NOW)
            for jobs in (batch, batch[::-1])
        ]
        one, other = at_once(*asked)
        assert {found(each).state for each in (*one[::10], *other[::10])} <= {"queued", "skipped"}
        assert WorkerTask.objects.count() == 100 * (number + 1)


@pytest.mark.parametrize("run_if", ["success", "failure"])
@pytest.mark.parametrize("ended", ["complete", "failed_with_error"])
def test_reorder_and_advance(run_if: str, ended: str) -> None:
    """What is put in order may go on, be passed over or be closed at this moment."""
    execution = start(step("a"), *(step(name, 1, run_if=run_if) for name in "bc"), step("d", 2))
    for task in WorkerTask.objects.filter(step_index=1).order_by("-pk"):
        # Now the table has them in another order than their ids.
        task.prioritise(5, initiator=SOMEBODY, now=NOW)
    b, c = WorkerTask.objects.filter(step_index=1).order_by("pk")
    worker = make_worker()
    finish = partial(end, worker, *claim(worker), status=ended)
    reorder = partial(WorkerTask.objects.reorder, [c.key, b.key], initiator=SOMEBODY, now=NOW)
    finished, reordered = queue_up(finish, reorder, behind=WorkerTask.objects.filter(pk=c.pk))
    assert len(finished) == 1
    assert reordered in (0, 2)
    run_until_idle()
    assert fresh(execution).status == ("completed" if ended == "complete" else "failed")
