"""Scheduler polling cycle: wait for the database, then again and again the four steps, until a shutdown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from execution.loops.scheduler import tick
from execution.models import Chore, Execution, WorkerTask
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


def test_the_four_steps(settings: Any) -> None:
    settings.JIM_LEASE_SECONDS = 60
    fresh_one, due = make_schedule(spec=HOURLY), make_schedule(spec={"at": [(NOW + seconds(61)).isoformat()]})
    Schedule.objects.filter(pk=fresh_one.pk).update(processed_until=None, next_run_at=None)
    worker, silent = make_worker(), make_worker()
    lost = start(step("lost"))
    claim(silent)
    stuck = start(step("a"), step("b", 1))
    end(worker, *claim(worker))
    for late in (0, 30, 60):
        worker.beat(NOW + seconds(late))
        tick(NOW + seconds(late))
    assert (queue(stuck), queue(lost)) == ({"b": "queued"}, {"lost": "processing"})
    WorkerTask.objects.filter(execution=stuck).update(status="waiting")
    Execution.objects.filter(pk=stuck.pk).update(current_index=0)
    tick(NOW + seconds(61))
    # 1. Update the next run times.
    assert (fresh(fresh_one).next_run_at, fates(fresh_one)) == (NOW + seconds(3600), [])
    # 2. Process due schedules.
    assert fates(due) == [("started", "")]
    # 3. Recover stuck executions.
    assert queue(stuck) == {"b": "queued"}
    # 4. Recover stale worker tasks.
    assert queue(lost) == {"lost": "queued"}
    assert [fresh(each).status for each in (worker, silent)] == ["alive", "dead"]
    assert Activity.objects.get(target_name="lost", attempt=1).error == "worker lost"


@pytest.mark.live
def test_then_it_sleeps_and_begins_again_at_the_latest_after_half_a_lease(settings: Any) -> None:
    settings.JIM_LEASE_SECONDS = 1
    cycles: set[datetime | None] = set()

    def has_begun_again() -> bool:
        cycles.update(Chore.objects.filter(name="tick").values_list("last_run_at", flat=True))
        return len(cycles) > 3

    with running_scheduler():
        wait_until(has_begun_again)
