"""Scheduler polling cycle: wait for the database, then again and again the four steps, until a shutdown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from activities import clock
from activities.models import Activity
from execution.models import Chore, Execution, Worker, WorkerTask
from execution.scheduler import SETTLING, tick
from schedules.models import Schedule
from tests.away import DatabaseAway
from tests.base import NOW, claim, end, fates, fresh, make_schedule, make_worker, queue, seconds, start, step
from tests.loops import running_scheduler
from tests.processes import Command
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
HOURLY = {"cron": ["0 * * * *"]}


@pytest.mark.live
def test_it_waits_for_the_database_to_be_ready_and_goes_on_until_a_shutdown_request(tmp_path: Path) -> None:
    schedule = make_schedule(spec={"every": ["1s"]}, now=clock.now())
    with DatabaseAway(tmp_path) as away, Command("runscheduler", **away.env) as running:
        wait_until(lambda: "waiting for the database" in running.said)
        assert running.process.poll() is None
        away.come_back()
        wait_until(schedule.executions.exists)
        assert running.terminate() == 0
        assert "scheduler stopped" in running.said


def test_step_1_updates_the_next_run_times() -> None:
    schedule = make_schedule(spec=HOURLY)
    Schedule.objects.update(processed_until=None, next_run_at=None)
    tick(NOW)
    assert fresh(schedule).next_run_at == NOW + seconds(3600)


def test_step_1_never_moves_a_time_that_is_due() -> None:
    schedule = make_schedule(spec=HOURLY)
    for part in SETTLING[:1]:
        part(NOW + seconds(7200))
    assert fresh(schedule).next_run_at == NOW + seconds(3600)


def test_step_2_processes_due_schedules() -> None:
    schedule = make_schedule(spec=HOURLY)
    tick(NOW + seconds(3600))
    assert fates(schedule) == [("started", "")]


def test_step_3_recovers_stuck_executions() -> None:
    execution = start(step("a"), step("b", 1))
    worker = make_worker()
    end(worker, *claim(worker))
    WorkerTask.objects.update(status="waiting")
    Execution.objects.update(current_index=0)
    tick(NOW)
    assert queue(execution) == {"b": "queued"}


def test_step_4_recovers_stale_worker_tasks(settings: Any) -> None:
    settings.JIM_LEASE_SECONDS = 60
    execution = start(step("a"))
    silent = make_worker()
    claim(silent)
    for late in (0, 30, 60):
        tick(NOW + seconds(late))
    assert queue(execution) == {"a": "processing"}
    tick(NOW + seconds(61))
    assert queue(execution) == {"a": "queued"}
    assert fresh(silent).status == Worker.Status.DEAD
    assert Activity.objects.get(target_name="a", attempt=1).error == "worker lost"


@pytest.mark.live
def test_then_it_sleeps_and_begins_again_at_the_latest_after_half_a_lease(settings: Any) -> None:
    settings.JIM_LEASE_SECONDS = 1
    cycles: set[datetime | None] = set()

    def has_begun_again() -> bool:
        cycles.update(Chore.objects.filter(name="tick").values_list("last_run_at", flat=True))
        return len(cycles) > 3

    with running_scheduler():
        wait_until(has_begun_again)
