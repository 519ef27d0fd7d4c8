"""Crash recovery: queued work is never lost, running work is failed and retried by policy, twice over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from activities.signals import activities_finished
from execution.loops import recovery
from execution.models import Worker, WorkerTask
from tests.base import NOW, claim, enqueue, make_worker, run_until_idle, step

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_data_folder(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path


def before_the_crash() -> WorkerTask:
    """[Job1 (running), Job2 (queued), Job3 (queued)]"""
    job, *_ = enqueue(step("Job1"), step("Job2"), step("Job3"))
    worker = make_worker()
    claim(worker, limit=1)
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)
    return job


def restart(times: int) -> None:
    for _ in range(times):
        recovery.recover(NOW)


@pytest.mark.parametrize("times", [1, 2])
def test_the_running_job_is_failed_and_retried_and_the_dispatch_loop_goes_on_in_order(times: int) -> None:
    job = before_the_crash()
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

    job = before_the_crash()
    lost = Activity.objects.get(task_key=job.key)
    activities_finished.connect(hear)
    try:
        restart(3)
    finally:
        activities_finished.disconnect(hear)
    assert told == [lost.pk]
