"""Crash recovery: queued work is never lost, running work is failed and retried by policy, twice over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from activities.signals import activities_finished
from execution import recovery
from execution.models import Worker, WorkerTask
from tests.base import NOW, break_down, claim, end, enqueue, make_worker, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_data_folder(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path


def crash(worker: Worker) -> None:
    """It is gone, and somebody has proof of it."""
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)


def restart(times: int = 1) -> None:
    for _ in range(times):
        recovery.recover(NOW)


def before_the_crash(**fields: Any) -> list[WorkerTask]:
    """[Job1 (running), Job2 (queued), Job3 (queued)]"""
    tasks = enqueue(*(step(name, **fields) for name in ("Job1", "Job2", "Job3")))
    worker = make_worker()
    claim(worker, limit=1)
    crash(worker)
    return tasks


@pytest.mark.parametrize("times", [1, 2])
def test_the_running_job_is_failed_and_retried_and_the_dispatch_loop_goes_on_in_order(times: int) -> None:
    job, *_ = before_the_crash()
    enqueue(step("urgent", priority=1))
    restart(times)
    chain = Activity.objects.get(task_key=job.key, attempt=1).chain()
    assert [(a.status, a.error) for a in chain] == [("failed_with_error", "worker lost"), ("pending", "")]
    assert run_until_idle() == ["urgent", "Job1", "Job2", "Job3"]
    assert not WorkerTask.objects.exists()


def test_the_failure_is_announced_once() -> None:
    told: list[int] = []

    def hear(ids: Any, **_: Any) -> None:
        told.extend(ids)

    job, *_ = before_the_crash()
    lost = Activity.objects.get(task_key=job.key)
    activities_finished.connect(hear)
    try:
        restart(3)
    finally:
        activities_finished.disconnect(hear)
    assert told == [lost.pk]


def test_a_job_that_must_not_run_twice_is_failed_for_good() -> None:
    job, *_ = before_the_crash(on_crash="fail")
    restart()
    [lost] = Activity.objects.filter(task_key=job.key)
    assert lost.permanently_failed
    assert lost.error == "worker lost: the step must not run twice"


def test_a_crash_costs_no_retry_of_the_failures() -> None:
    enqueue(step("job", max_retries=1))
    first = make_worker()
    claim(first)
    crash(first)
    restart()
    second = make_worker()
    break_down(second, *claim(second))
    [held] = claim(make_worker(), now=NOW + seconds(10))
    assert held.attempt == 3


def test_what_the_lost_worker_still_says_is_refused() -> None:
    enqueue(step("job"))
    lost = make_worker()
    held = claim(lost)
    crash(lost)
    restart()
    assert end(lost, *held) == set()
    assert run_until_idle() == ["job"]
