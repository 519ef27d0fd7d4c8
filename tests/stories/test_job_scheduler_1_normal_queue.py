"""Normal queue execution: a job is created, enqueued, dispatched and executed, and the next one follows."""

from __future__ import annotations

import uuid

import pytest

from activities.models import Activity
from execution.loops.scheduler import tick
from execution.models import Job, WorkerTask
from tests.base import NOW, claim, enqueue, make_schedule, make_worker, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db
LATER = step("later") | {"available_at": NOW + seconds(60)}


def found(key: uuid.UUID) -> Job:
    job = Job.find(key)
    assert job is not None
    return job


def test_a_job_is_created_by_cron() -> None:
    """1. Either cron fires or the API is called."""
    make_schedule(step("nightly"), spec={"cron": ["1 3 * * *"]})
    tick(NOW)
    tick(NOW + seconds(60))
    assert list(WorkerTask.objects.values_list("name", "status")) == [("nightly", "queued")]


def test_it_is_persisted_with_a_pending_activity_before_anybody_hears_of_its_id() -> None:
    """2. As queued, with its position; one for later is not claimed before its time."""
    task, _ = enqueue(step("once", priority=5) | {"position": 300}, LATER)
    assert (task.status, task.priority, task.position) == ("queued", 5, 300)
    assert (task.activity.status, found(task.key).state) == (Activity.Status.PENDING, "queued")
    worker = make_worker()
    assert [held.name for held in claim(worker, now=NOW + seconds(59))] == ["once"]
    assert [held.name for held in claim(worker, now=NOW + seconds(60))] == ["later"]


def test_dispatch_is_by_priority_then_position_then_age() -> None:
    """3 and 4. The next available one."""
    jobs = [("e", 0, 300), ("c", 0, 100), ("d", 0, 100), ("a", 9, 500), ("b", 5, -1), ("f", -5, -2)]
    enqueue(*(step(name, priority=priority) | {"position": at} for name, priority, at in jobs))
    worker = make_worker()
    assert "".join(claim(worker, limit=1)[0].name for _ in jobs) == "abcdef"


@pytest.mark.parametrize(
    ("function", "status"), [("noop", "complete"), ("fail", "failed_with_error"), ("skip", "skipped")]
)
def test_execution_ends_in_success_failure_or_skip(function: str, status: str) -> None:
    """5. The record of the run gets its terminal status, and the queue row is gone."""
    [task] = enqueue(step("once", 0, function))
    run_until_idle()
    job = found(task.key)
    assert (job.task, job.state) == (None, status)


def test_after_a_failure_a_retry_is_considered_and_the_next_one_follows() -> None:
    """6. The loop goes on."""
    [bad, _] = enqueue(step("bad", 0, "fail", max_retries=1), step("good"))
    assert run_until_idle() == ["bad", "good"]
    assert (found(bad.key).state, found(bad.key).activity.attempt) == ("queued", 2)
