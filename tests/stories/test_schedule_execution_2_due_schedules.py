"""Due schedule processing: what happens to schedules where NextRunTime <= UtcNow."""

from __future__ import annotations

import pytest

from execution.loops.scheduler import tick
from execution.models import Execution, WorkerTask
from schedules.models import Occurrence
from tests.base import NOW, fates, fresh, make_schedule, queue, run_until_idle, seconds, step

pytestmark = pytest.mark.django_db(transaction=True)
HOURLY = {"cron": ["0 * * * *"]}
DUE = NOW + seconds(3600)
PLAN = step("Import", 0), step("Sync", 1), step("Export", 2), step("Confirm", 2)


def test_only_schedules_whose_next_run_time_has_come_are_processed() -> None:
    due, other, later, by_hand = (
        make_schedule(spec=spec) for spec in (HOURLY, HOURLY, {"cron": ["30 4 * * *"]}, {})
    )
    tick(DUE)
    assert fates(due) == fates(other) == [("started", "")]
    assert fates(later) == fates(by_hand) == []


def test_if_an_active_execution_already_exists_the_occurrence_is_skipped_and_says_why() -> None:
    schedule = make_schedule(spec=HOURLY)
    tick(DUE)
    active = Execution.objects.get()
    tick(DUE + seconds(3600))
    assert Execution.objects.count() == 1
    skipped = Occurrence.objects.get(status="skipped")
    assert (skipped.reason, skipped.blocked_by) == ("overlap", active.pk)
    assert fresh(schedule).skipped_count == 1
    assert fresh(schedule).next_run_at == DUE + seconds(7200)
    run_until_idle(now=DUE + seconds(3601))
    tick(DUE + seconds(3602))
    assert Execution.objects.in_progress().count() == 0


def test_otherwise_an_execution_is_created_with_all_step_groups_queued_upfront() -> None:
    schedule = make_schedule(*PLAN, spec=HOURLY)
    tick(DUE + seconds(3))
    execution = Execution.objects.get()
    assert (execution.schedule, execution.status, execution.current_index) == (schedule, "in_progress", 0)
    assert execution.occurrence is not None
    assert execution.occurrence.nominal_at == DUE
    assert queue(execution) == {
        "Import": "queued",
        "Sync": "waiting",
        "Export": "waiting",
        "Confirm": "waiting",
    }
    assert WorkerTask.objects.get(name="Import").available_at == DUE + seconds(3)
    assert (fresh(schedule).last_run_at, fresh(schedule).next_run_at) == (
        DUE + seconds(3),
        DUE + seconds(3600),
    )
