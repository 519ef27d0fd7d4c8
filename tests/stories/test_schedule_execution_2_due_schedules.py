"""Due schedule processing: what happens to schedules where NextRunTime <= UtcNow."""

from __future__ import annotations

import pytest

from execution.models import Execution, WorkerTask
from execution.scheduler import tick
from schedules.models import Occurrence
from tests.base import NOW, fates, fresh, make_schedule, queue, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db(transaction=True)
HOURLY = {"cron": ["0 * * * *"]}
DUE = NOW + seconds(3600)
PLAN = step("Import", 0), step("Sync", 1), step("Export", 2), step("Confirm", 2)


def test_only_schedules_whose_next_run_time_has_come_are_processed() -> None:
    due, later, by_hand = (make_schedule(spec=spec) for spec in (HOURLY, {"cron": ["30 4 * * *"]}, {}))
    tick(DUE)
    assert fates(due) == [("started", "")]
    assert fates(later) == fates(by_hand) == []


def test_every_due_schedule_has_its_turn() -> None:
    schedules = [make_schedule(spec=HOURLY) for _ in range(5)]
    tick(DUE)
    assert [fates(schedule) for schedule in schedules] == [[("started", "")]] * 5


def test_if_an_active_execution_already_exists_the_occurrence_is_skipped_and_says_why() -> None:
    schedule = make_schedule(spec=HOURLY)
    tick(DUE)
    active = Execution.objects.get()
    tick(DUE + seconds(3600))
    assert Execution.objects.count() == 1
    skipped = Occurrence.objects.get(status="skipped")
    assert (skipped.reason, skipped.blocked_by) == ("overlap", active.pk)
    assert fresh(schedule).skipped_count == 1


def test_the_next_run_time_moves_for_the_skipped_one_too() -> None:
    schedule = make_schedule(spec=HOURLY)
    tick(DUE)
    tick(DUE + seconds(3600))
    assert fresh(schedule).next_run_at == DUE + seconds(7200)
    run_until_idle(now=DUE + seconds(3601))
    tick(DUE + seconds(3602))
    assert Execution.objects.in_progress().count() == 0


def test_otherwise_an_execution_is_created_in_progress_at_its_first_step_index() -> None:
    schedule = make_schedule(*PLAN, spec=HOURLY)
    tick(DUE)
    execution = Execution.objects.get()
    assert (execution.schedule, execution.status, execution.current_index) == (schedule, "in_progress", 0)
    assert execution.occurrence is not None
    assert execution.occurrence.nominal_at == DUE


def test_the_schedules_last_run_time_is_updated() -> None:
    schedule = make_schedule(spec=HOURLY)
    tick(DUE + seconds(3))
    assert fresh(schedule).last_run_at == DUE + seconds(3)


def test_all_step_groups_are_queued_upfront() -> None:
    make_schedule(*PLAN, spec=HOURLY)
    tick(DUE)
    assert WorkerTask.objects.count() == 4


def test_the_first_step_index_is_queued_and_ready_to_run_immediately() -> None:
    make_schedule(*PLAN, spec=HOURLY)
    tick(DUE)
    first = WorkerTask.objects.get(name="Import")
    assert (first.status, first.available_at) == ("queued", DUE)


def test_the_others_are_visible_on_the_queue_but_blocked() -> None:
    make_schedule(*PLAN, spec=HOURLY)
    tick(DUE)
    assert queue(Execution.objects.get()) == {
        "Import": "queued",
        "Sync": "waiting",
        "Export": "waiting",
        "Confirm": "waiting",
    }


def test_the_next_cron_run_time_is_calculated_and_set() -> None:
    schedule = make_schedule(spec=HOURLY)
    tick(DUE)
    assert fresh(schedule).next_run_at == DUE + seconds(3600)
