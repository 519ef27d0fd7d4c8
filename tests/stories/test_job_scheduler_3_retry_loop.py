"""Retry loop: 10 s, 20 s, 40 s, then permanently failed; and a manual retry at any time."""

from __future__ import annotations

from datetime import datetime

import pytest

from activities.models import Activity
from execution.models import Job, WorkerTask
from schedules.models import Refused
from tests.base import (
    NOW,
    SOMEBODY,
    attempts,
    break_down,
    claim,
    end,
    enqueue,
    fresh,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)

pytestmark = pytest.mark.django_db
JOB = step("job", max_retries=3)


def found(task: WorkerTask) -> Job:
    job = Job.find(task.key)
    assert job is not None
    return job


def fail_next(now: datetime) -> Activity:
    """The attempt that is ready at this time, which fails."""
    worker = make_worker(now)
    [held] = claim(worker, now=now)
    break_down(worker, held, now=now)
    return Activity.objects.get(pk=held.activity_id)


def test_the_chain_is_retried_after_10_20_and_40_seconds_and_then_permanently_failed() -> None:
    [task] = enqueue(JOB)
    at, chain = NOW, []
    for wait in (10, 20, 40):
        chain.append(fail_next(at))
        task.refresh_from_db()
        assert task.available_at == at + seconds(wait)
        assert claim(make_worker(), now=task.available_at - seconds(0.001)) == []
        at = task.available_at
    chain.append(fail_next(at))
    assert not WorkerTask.objects.exists()
    assert found(task).activity.attempt == 4
    assert [a.retry_of_id for a in chain] == [None, *(a.pk for a in chain[:3])]
    assert [(a.status, a.permanently_failed) for a in chain] == [
        ("failed_with_error", is_last) for is_last in (False, False, False, True)
    ]


class TestManualRetry:
    """Always available, regardless of the count of automatic ones."""

    def test_of_a_job_is_its_next_attempt_with_a_full_budget(self) -> None:
        [task] = enqueue(JOB)
        *_, last = [fail_next(NOW + seconds(at)) for at in (0, 10, 30, 70)]
        later = NOW + seconds(100)
        again = found(task).retry(initiator=SOMEBODY, now=later)
        assert (again.key, again.attempt, again.failures) == (task.key, 5, 0)
        assert again.activity.retry_of_id == last.pk
        fail_next(later)
        assert fresh(again).available_at == later + seconds(10)

    def test_of_a_job_that_was_cancelled_but_not_of_what_has_not_ended_or_did_not_fail(self) -> None:
        [task] = enqueue(JOB)
        with pytest.raises(Refused, match="has not ended"):
            found(task).retry(initiator=SOMEBODY, now=NOW)
        assert found(task).cancel(initiator=SOMEBODY, now=NOW)
        job = found(task)
        job.retry(initiator=SOMEBODY, now=NOW)
        with pytest.raises(Refused, match="already"):
            job.retry(initiator=SOMEBODY, now=NOW)
        assert run_until_idle() == ["job"]
        with pytest.raises(Refused, match="did not fail"):
            found(task).retry(initiator=SOMEBODY, now=NOW)

    def test_of_an_execution_goes_on_from_its_failed_step_and_keeps_what_succeeded(self) -> None:
        before = start(step("a", 0, "result"), step("b", 1, "fail"), step("c", 2))
        run_until_idle()
        assert fresh(before).status == "failed"
        after = fresh(before).retry(initiator=SOMEBODY, now=NOW)
        assert after is not None
        assert after.retry_of_id == before.pk
        worker = make_worker()
        [b] = claim(worker)
        assert b.name == "b"
        end(worker, b)
        assert run_until_idle() == ["c"]
        assert fresh(after).status == "completed"
        [kept] = attempts(after, "a")
        assert (kept.status, kept.result) == ("complete", 42)
        assert kept.message == f"Not run again: the outcome of this step in execution {before.pk} is reused."

    def test_of_a_whole_execution_runs_everything_once_more(self) -> None:
        before = start(step("a"), step("b", 1))
        run_until_idle()
        after = fresh(before).retry(initiator=SOMEBODY, now=NOW, whole=True)
        assert after is not None
        assert run_until_idle() == ["a", "b"]
        assert step_statuses(after) == {"a": ["complete"], "b": ["complete"]}
