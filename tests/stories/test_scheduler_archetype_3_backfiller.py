"""The Backfiller: Created, Processing, Completed; each handles one request and then takes part in nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from activities.models import Activity
from execution.loops.scheduler import is_due, next_due, tick
from execution.models import Execution
from schedules import generator
from schedules.models import Backfill, Schedule
from tests.base import NOW, SOMEBODY, fates, fresh, make_schedule, run_until_idle, seconds
from tests.invariants import violations

pytestmark = pytest.mark.django_db(transaction=True)
HOURLY = {"cron": ["0 * * * *"]}
TEN_HOURS = 10


@pytest.fixture(autouse=True)
def slices_of_four(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each backfill in a tick, however busy the machine is."""
    settings.JIM_BACKFILL_SLICE = 4
    monkeypatch.setattr(generator, "BACKFILL_SECONDS", 60)


@pytest.fixture
def schedule() -> Schedule:
    return make_schedule(spec=HOURLY, name="Sync")


def hours_ago(number: int) -> datetime:
    return NOW - timedelta(hours=number)


def ask(schedule: Schedule, **fields: Any) -> Backfill:
    """For the ten hours before this one."""
    return Backfill.objects.ask(
        schedule, start_at=hours_ago(TEN_HOURS), end_at=hours_ago(1), initiator=SOMEBODY, now=NOW, **fields
    )


def state(backfill: Backfill) -> tuple[str, int, int]:
    current = fresh(backfill)
    return current.status, current.passed_count, current.total


def test_created_processed_slice_by_slice_and_completed(schedule: Schedule) -> None:
    """Its occurrences have their turns one after the other, also when it is completed itself."""
    backfill = ask(schedule)
    assert state(backfill) == ("open", 0, 10)
    assert Activity.objects.get(operation="backfill").initiator_name == "ada"
    assert fates(schedule) == []
    assert is_due(NOW)

    tick(NOW)
    assert state(backfill) == ("open", 4, 10)
    assert fates(schedule) == [("started", ""), *[("pending", "overlap")] * 3]
    execution = Execution.objects.get()
    assert execution.source == "backfill"
    assert execution.occurrence is not None
    assert execution.occurrence.nominal_at == hours_ago(TEN_HOURS)

    tick(NOW)
    assert state(backfill) == ("open", 8, 10)
    tick(NOW)
    assert state(backfill) == ("done", 10, 10)
    assert fresh(backfill).finished_at == NOW
    nominal = backfill.occurrences.order_by("nominal_at").values_list("nominal_at", flat=True)
    assert list(nominal) == [hours_ago(number) for number in range(TEN_HOURS, 0, -1)]
    assert fresh(backfill).progress() == (10, 10, 10, 9, 1, 1, 0)

    work_off(schedule)
    assert fresh(backfill).progress()[:5] == (10, 10, 10, 0, 10)
    assert violations() == []
    # Now it takes part in nothing and stays as history.
    assert not Backfill.objects.open().exists()
    assert not is_due(NOW + seconds(60))
    assert next_due(NOW + seconds(60)) == fresh(schedule).next_run_at
    assert not backfill.cancel(initiator=SOMEBODY, now=NOW)
    assert state(backfill) == ("done", 10, 10)


def test_cancelled_on_the_way_it_generates_nothing_more(schedule: Schedule) -> None:
    backfill = ask(schedule)
    tick(NOW)
    assert backfill.cancel(initiator=SOMEBODY, now=NOW)
    work_off(schedule)
    assert state(backfill) == ("cancelled", 4, 10)
    assert fates(schedule) == [("started", ""), *[("cancelled", "backfill cancelled")] * 3]
    assert Execution.objects.get().status == "completed"
    assert violations() == []


def work_off(schedule: Schedule, *, now: datetime = NOW) -> None:
    """Ticks and works until nothing of the schedule is left to be done."""
    while schedule.occurrences.pending().exists() or schedule.executions.filter(accounted_at=None).exists():
        tick(now)
        run_until_idle(now=now)
