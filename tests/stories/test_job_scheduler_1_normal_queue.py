"""Normal queue execution: a job is created, enqueued, dispatched and executed, and the next one follows."""

from __future__ import annotations

import uuid

import pytest

from activities.models import Activity
from execution.models import Job, WorkerTask
from execution.scheduler import tick
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    enqueue,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    step,
)

pytestmark = pytest.mark.django_db


def found(key: uuid.UUID) -> Job:
    job = Job.find(key)
    assert job is not None
    return job


class TestJobCreation:
    """1. Either cron fires or the API is called."""

    def test_cron_fires(self) -> None:
        make_schedule(step("nightly"), spec={"cron": ["1 3 * * *"]})
        tick(NOW)
        tick(NOW + seconds(60))
        assert list(WorkerTask.objects.values_list("name", "status")) == [("nightly", "queued")]

    def test_somebody_asks(self) -> None:
        [key] = WorkerTask.objects.enqueue([step("once")], initiator=SOMEBODY, now=NOW)
        assert found(key).state == "queued"


class TestEnqueue:
    """2. It is persisted as queued, with its position, before anybody hears of its id."""

    def test_it_is_persisted_with_a_pending_activity(self) -> None:
        [task] = enqueue(step("once", priority=5) | {"position": 300})
        assert (task.status, task.priority, task.position) == ("queued", 5, 300)
        assert task.activity.status == Activity.Status.PENDING

    def test_a_job_for_later_is_queued_and_not_claimed_before_its_time(self) -> None:
        enqueue(step("later") | {"available_at": NOW + seconds(60)})
        worker = make_worker()
        assert claim(worker, now=NOW + seconds(59)) == []
        assert [task.name for task in claim(worker, now=NOW + seconds(60))] == ["later"]


class TestDispatch:
    """3 and 4. The next available one: by priority, then position, then age."""

    @pytest.mark.parametrize(
        ("jobs", "order"),
        [
            ([("a", 0, 0), ("b", 0, 0), ("c", 0, 0)], "abc"),
            ([("a", 0, 0), ("b", 9, 0), ("c", 5, 0)], "bca"),
            ([("a", 0, 300), ("b", 0, 100), ("c", 0, 200)], "bca"),
            ([("a", 0, -1), ("b", 1, 500), ("c", 0, -2)], "bca"),
            ([("a", -5, 0), ("b", 0, 0), ("c", -5, -1)], "bca"),
        ],
    )
    def test_the_order(self, jobs: list[tuple[str, int, int]], order: str) -> None:
        enqueue(*(step(name, priority=priority) | {"position": at} for name, priority, at in jobs))
        worker = make_worker()
        taken = [claim(worker, limit=1)[0].name for _ in jobs]
        assert "".join(taken) == order


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
