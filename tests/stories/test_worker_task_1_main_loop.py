"""Worker main loop: recover at the start, then look after what runs, poll for more, keep house, sleep."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from activities import clock
from activities.models import Activity
from execution.lifeline import Lifeline
from execution.models import Execution, Worker, WorkerTask
from tests.base import SOMEBODY, claim, fresh, make_worker, start, step, step_statuses
from tests.loops import has_looked, running_worker, work_until_idle
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.live]


@pytest.fixture(autouse=True)
def own_data_folder(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path


def begin(*steps: dict[str, Any]) -> Execution:
    return start(*steps, now=clock.now())


def left_by_a_crash(*steps: dict[str, Any]) -> Execution:
    """An execution whose worker died in the middle of its first group."""
    execution = begin(*steps)
    victim = make_worker(clock.now())
    claim(victim, now=clock.now())
    os.close(Lifeline(victim.pk).fd)
    return execution


def is_running(name: str) -> bool:
    """Not only claimed: the step itself has begun, and said so."""
    return Activity.objects.filter(target_name=name, status="in_progress", message="waiting").exists()


class TestWorkerStarts:
    def test_it_is_a_new_worker_each_time(self) -> None:
        work_until_idle()
        work_until_idle()
        assert Worker.objects.count() == 2
        assert set(Worker.objects.values_list("status", flat=True)) == {"gone"}

    @pytest.mark.parametrize("is_cancelled", [False, True])
    def test_tasks_and_cancellations_orphaned_by_a_crash_are_recovered_immediately(
        self, is_cancelled: bool
    ) -> None:
        execution = left_by_a_crash(step("a"), step("b", 1))
        if is_cancelled:
            execution.cancel(initiator=SOMEBODY, now=clock.now())
        work_until_idle()
        done = {"a": ["failed_with_error", "complete"], "b": ["complete"]}
        assert step_statuses(execution) == (
            {"a": ["cancelled"], "b": ["cancelled"]} if is_cancelled else done
        )
        assert fresh(execution).status == ("cancelled" if is_cancelled else "completed")


class TestShutdownRequested:
    def test_current_tasks_are_ended_and_the_worker_is_gone(self, settings: Any) -> None:
        """The seed cancels them; a step that must stop for the worker's sake is queued again instead."""
        settings.JIM_GRACE_SECONDS = 0.1
        execution = begin(step("long", 0, "wait_for_ever"))
        with running_worker() as loop:
            wait_until(lambda: is_running("long"))
        assert fresh(loop.worker).status == Worker.Status.GONE
        assert step_statuses(execution) == {"long": ["failed_with_error", "pending"]}
        assert WorkerTask.objects.get().status == "queued"


class TestWithCurrentTasks:
    def test_a_cancellation_request_triggers_the_token_of_its_task_only(self, settings: Any) -> None:
        settings.JIM_GRACE_SECONDS = 0
        wanted, other = begin(step("wanted", 0, "wait_for_ever")), begin(step("other", 0, "wait_for_ever"))
        with running_worker():
            wait_until(lambda: is_running("wanted") and is_running("other"))
            wanted.cancel(initiator=SOMEBODY, now=clock.now())
            wait_until(lambda: fresh(wanted).status == Execution.Status.CANCELLED)
            assert is_running("other")
        assert step_statuses(wanted) == {"wanted": ["cancelled"]}
        assert fresh(other).status == Execution.Status.IN_PROGRESS

    def test_free_seats_are_filled_while_other_tasks_run_and_the_heartbeat_goes_on(
        self, settings: Any
    ) -> None:
        """The seed polls only when idle: one long task would hold up everything."""
        settings.JIM_GRACE_SECONDS = 0
        begin(step("long", 0, "wait_for_ever"))
        with running_worker(threads=2) as loop:
            wait_until(lambda: is_running("long"))
            seen = fresh(loop.worker).lease_until
            short = begin(step("a"), step("b", 1))
            wait_until(lambda: fresh(short).status == Execution.Status.COMPLETED)
            wait_until(lambda: fresh(loop.worker).lease_until > seen)
            assert is_running("long")


class TestWithoutCurrentTasks:
    def test_it_polls_the_queue_and_gets_a_whole_parallel_group(self) -> None:
        execution = begin(*(step(f"p{n}") for n in range(4)))
        work_until_idle(threads=4)
        claimed = Activity.objects.filter(parent=execution.activity_id).values_list("worker_id", flat=True)
        assert len(set(claimed)) == 1
        assert fresh(execution).status == Execution.Status.COMPLETED

    def test_each_new_task_is_dispatched_with_a_connection_of_its_own(self) -> None:
        execution = begin(
            step("a", 0, "connection_of", kwargs={"other": "b"}),
            step("b", 0, "connection_of", kwargs={"other": "a"}),
        )
        work_until_idle()
        results = Activity.objects.filter(parent=execution.activity_id).values_list("result", flat=True)
        assert len(set(results)) == 2
        assert None not in results

    def test_with_nothing_to_do_it_sleeps_until_it_is_woken(self, settings: Any) -> None:
        """A change wakes it at once; the two seconds are for changes that nobody announced."""
        settings.JIM_POLL_SECONDS = 3600
        with running_worker() as loop:
            wait_until(lambda: has_looked(loop))
            execution = begin(step("a"), step("b", 1))
            wait_until(lambda: fresh(execution).status == Execution.Status.COMPLETED)
