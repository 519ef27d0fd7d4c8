"""Recovery mechanisms: three safety nets ensure that schedules complete even when services crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from execution.children.lifeline import Lifeline
from execution.loops.scheduler import tick
from execution.models import Execution, Worker, WorkerTask
from tests.base import (
    NOW,
    claim,
    end,
    everything,
    fresh,
    make_worker,
    queue,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)
from tests.loops import work_until_idle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_data_folder(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path
    settings.JIM_LEASE_SECONDS = 60


class TestWorkerStartupRecovery:
    """1. The seed takes all processing tasks for orphans; only those of workers proven dead are."""

    def test_a_starting_worker_queues_the_tasks_of_the_dead_again_and_fails_their_activities(self) -> None:
        execution = start(step("a"))
        victim = make_worker()
        claim(victim)
        os.close(Lifeline(victim.pk).fd)
        work_until_idle()
        assert fresh(victim).status == Worker.Status.DEAD
        assert step_statuses(execution) == {"a": ["failed_with_error", "complete"]}
        assert Activity.objects.get(target_name="a", attempt=1).error == "worker lost"
        assert fresh(execution).status == Execution.Status.COMPLETED


class TestStuckExecutionRecovery:
    """2. For each execution in progress."""

    def test_with_waiting_tasks_only_it_is_advanced_to_the_next_step(self) -> None:
        execution = start(step("a"), step("b", 1), step("c", 2))
        worker = make_worker()
        end(worker, *claim(worker))
        WorkerTask.objects.update(status="waiting")
        Execution.objects.update(current_index=0)
        tick(NOW)
        assert queue(execution) == {"b": "queued", "c": "waiting"}
        assert run_until_idle() == ["b", "c"]


class TestStaleTaskRecovery:
    """3. The heartbeat is the worker's lease: it covers all of its tasks."""

    def test_another_worker_picks_them_up_and_the_stale_one_changes_nothing_when_it_comes_back(self) -> None:
        execution = start(step("a"))
        worker = make_worker()
        (task,) = claim(worker)
        for late in (0, 30, 60, 90):
            tick(NOW + seconds(late))
        before, later = everything(), NOW + seconds(91)
        assert worker.beat(later) is False
        assert end(worker, task, now=later) == set()
        assert claim(worker, now=later) == []
        assert everything() == before
        assert run_until_idle(now=later) == ["a"]
        assert fresh(execution).status == Execution.Status.COMPLETED
