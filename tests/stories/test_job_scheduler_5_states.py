"""The states of a job and of its runs."""

from __future__ import annotations

import uuid

import pytest

from execution.models import Job, WorkerTask
from tests.base import NOW, SOMEBODY, claim, end, enqueue, make_worker, step

pytestmark = pytest.mark.django_db


def found(task: WorkerTask) -> Job:
    job = Job.find(task.key)
    assert job is not None
    return job


class TestJob:
    def test_queued_running_complete_under_one_id_for_life(self) -> None:
        [task] = enqueue(step("job"))
        assert found(task).state == "queued"
        worker = make_worker()
        [held] = claim(worker)
        assert found(task).state == "processing"
        end(worker, held, result={"rows": 3})
        job = found(task)
        assert (job.task, job.state, job.activity.result) == (None, "complete", {"rows": 3})
        assert job.cancel(initiator=SOMEBODY, now=NOW) is False
        assert found(task).state == "complete"
        assert Job.find(uuid.uuid4()) is None

    def test_cancelled_before_it_was_dispatched(self) -> None:
        [task] = enqueue(step("job"))
        assert found(task).cancel(initiator=SOMEBODY, now=NOW, reason="not today")
        assert found(task).state == "cancelled"
        assert claim(make_worker()) == []

    def test_cancelled_while_it_runs_it_is_asked_to_stop(self) -> None:
        [task] = enqueue(step("job", max_retries=3))
        worker = make_worker()
        [held] = claim(worker)
        assert found(task).cancel(initiator=SOMEBODY, now=NOW)
        assert found(task).state == "cancelling"
        end(worker, held, status="cancelled", interrupted="cancel")
        assert found(task).state == "cancelled"


class TestWhileItIsQueued:
    """Its place may change; once it runs, nothing does."""

    def test_priority_and_position(self) -> None:
        a, b, c = enqueue(step("a"), step("b"), step("c"))
        assert c.prioritise(5, initiator=SOMEBODY, now=NOW)
        assert b.move_to_front(initiator=SOMEBODY, now=NOW)
        assert a.move_to_back(initiator=SOMEBODY, now=NOW)
        assert [claim(make_worker(), limit=1)[0].name for _ in range(3)] == ["c", "b", "a"]

    def test_frozen_once_it_runs(self) -> None:
        [task] = enqueue(step("job"))
        claim(make_worker())
        assert task.prioritise(5, initiator=SOMEBODY, now=NOW) is False
        assert task.move_to_front(initiator=SOMEBODY, now=NOW) is False
        task.refresh_from_db()
        assert (task.priority, task.position) == (0, 0)
