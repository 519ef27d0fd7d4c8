"""Recovery mechanisms: three safety nets ensure that schedules complete even when services crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from execution.lifeline import Lifeline
from execution.models import Execution, Worker, WorkerTask
from execution.scheduler import tick
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

    def test_the_tasks_of_a_living_worker_are_not_touched(self) -> None:
        execution = start(step("a"))
        neighbour = make_worker()
        (task,) = claim(neighbour)
        lifeline = Lifeline(neighbour.pk)
        work_until_idle()
        assert fresh(neighbour).status == Worker.Status.ALIVE
        assert end(neighbour, task) == {task.pk}
        assert step_statuses(execution) == {"a": ["complete"]}
        lifeline.drop()


class TestStuckExecutionRecovery:
    """2. For each execution in progress."""

    @pytest.mark.parametrize("claimed", [False, True])
    def test_with_queued_or_processing_tasks_it_is_normal_operation(self, claimed: bool) -> None:
        start(step("a"), step("b", 1))
        if claimed:
            claim(make_worker())
        tick(NOW)
        before = everything()
        tick(NOW)
        assert everything() == before

    def test_with_waiting_tasks_only_it_is_advanced_to_the_next_step(self) -> None:
        execution = start(step("a"), step("b", 1), step("c", 2))
        worker = make_worker()
        end(worker, *claim(worker))
        WorkerTask.objects.update(status="waiting")
        Execution.objects.update(current_index=0)
        tick(NOW)
        assert queue(execution) == {"b": "queued", "c": "waiting"}
        assert run_until_idle() == ["b", "c"]

    def test_with_waiting_tasks_after_a_failure_it_fails(self) -> None:
        execution = start(step("a"), step("b", 1))
        WorkerTask.objects.filter(name="a").delete()
        Activity.objects.filter(target_name="a").update(status="failed_with_error", error="boom")
        tick(NOW)
        assert fresh(execution).status == Execution.Status.FAILED
        assert not WorkerTask.objects.exists()

    def test_with_no_tasks_at_all_its_activities_decide(self) -> None:
        """The seed marks it complete: a false success if the tasks were lost."""
        done, lost = start(step("a")), start(step("a"))
        WorkerTask.objects.all().delete()
        Activity.objects.filter(parent=done.activity_id).update(status="complete")
        tick(NOW)
        assert fresh(done).status == Execution.Status.COMPLETED
        assert fresh(lost).status == Execution.Status.FAILED
        assert "vanished" in fresh(lost).error


class TestStaleTaskRecovery:
    """3. The heartbeat is the worker's lease: it covers all of its tasks."""

    def test_without_a_stale_worker_nothing_happens(self) -> None:
        start(step("a"))
        worker = make_worker()
        claim(worker)
        for late in range(0, 150, 30):
            worker.beat(NOW + seconds(late))
            tick(NOW + seconds(late))
        assert step_statuses(Execution.objects.get()) == {"a": ["in_progress"]}

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
