"""Worker main loop: recover at the start, then look after what runs, poll for more, keep house, sleep."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from execution.children.lifeline import Lifeline
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


def is_running(name: str) -> bool:
    """Not only claimed: the step itself has begun, and said so."""
    return Activity.objects.filter(target_name=name, status="in_progress", message="waiting").exists()


def test_a_starting_worker_recovers_cancellations_orphaned_by_a_crash_immediately() -> None:
    """And tasks: in the story of recovery."""
    execution = begin(step("a"), step("b", 1))
    victim = make_worker(clock.now())
    claim(victim, now=clock.now())
    os.close(Lifeline(victim.pk).fd)
    execution.cancel(initiator=SOMEBODY, now=clock.now())
    work_until_idle()
    assert step_statuses(execution) == {"a": ["cancelled"], "b": ["cancelled"]}
    assert fresh(execution).status == "cancelled"


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
