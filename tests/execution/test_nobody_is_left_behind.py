"""Whatever waits is looked at again, also if what it waited for could not be done."""

from __future__ import annotations

from typing import Any

import pytest

from execution.loops import invoker
from execution.loops.scheduler import tick, time_out
from execution.models import Execution
from schedules.generator import end_snoozes
from schedules.models import Backfill, Schedule, Step, timetable
from tests.base import NOW, SOMEBODY, fates, fresh, make_schedule, seconds
from tests.invariants import violations
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db

EVERY_TEN = {"every": ["10s"]}


@pytest.mark.parametrize("overlap", Schedule.Overlap.values)
def test_behind_a_start_that_is_impossible(overlap: str) -> None:
    schedule = make_schedule(spec=EVERY_TEN, overlap=overlap)
    Step.objects.filter(schedule=schedule).delete()
    now = NOW + seconds(30)
    for _ in range(3):
        tick(now)
    assert {status for status, _ in fates(schedule)} == {"skipped"}
    assert violations(now=now) == []


def test_a_backfill_whose_times_cannot_be_started(settings: Any) -> None:
    """The database refuses all its starts: it goes on to its end nevertheless."""
    settings.JIM_BUFFER_LIMIT, settings.JIM_BACKFILL_SLICE = 4, 2
    schedule = make_schedule(name="poison", spec={"every": ["1h"]})
    backfill = Backfill.objects.ask(
        schedule, start_at=NOW - seconds(5 * 3600), end_at=NOW, initiator=SOMEBODY, now=NOW
    )
    with database_that_refuses("NEW.schedule_name = 'poison'", table="execution_execution", event="INSERT"):
        for _ in range(10):
            tick(NOW)
    assert fresh(backfill).status == "done"
    assert {status for status, _ in fates(schedule)} == {"skipped"}
    assert violations(now=NOW) == []


def test_beside_a_schedule_with_more_than_a_pass_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoker, "OCCURRENCES_PER_PASS", 3)
    crowded = make_schedule(spec=EVERY_TEN, overlap="buffer_all")
    other = make_schedule(spec={"every": ["1m"]})
    tick(NOW + seconds(60))
    assert [status for status, _ in fates(other)] == ["started"]
    assert [status for status, _ in fates(crowded)] == ["started"] + ["pending"] * 5


def test_beside_a_snooze_that_cannot_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timetable, "TIMES_PER_PASS", 2)
    monkeypatch.setattr(timetable, "EDIT_PASSES", 1)
    behind, other = make_schedule(spec=EVERY_TEN), make_schedule(spec={"every": ["1h"]})
    for schedule in (behind, other):
        schedule.pause(initiator=SOMEBODY, now=NOW, until=NOW + seconds(60))
    end_snoozes(NOW + seconds(60))
    assert (fresh(behind).status, fresh(other).status) == ("paused", "active")
    tick(NOW + seconds(60))
    assert fresh(behind).status == "active"


def test_beside_a_timeout_that_the_database_refuses() -> None:
    for name in ("poison", "other"):
        make_schedule(name=name, spec={"every": ["1m"]}, timeout_seconds=10)
    tick(NOW + seconds(60))
    with database_that_refuses("NEW.schedule_name = 'poison'", table="execution_execution"):
        time_out(NOW + seconds(70))
    asked = Execution.objects.exclude(cancel_requested_at=None)
    assert [execution.schedule_name for execution in asked] == ["other"]
    tick(NOW + seconds(70))
    assert set(Execution.objects.values_list("status", flat=True)) == {"failed"}
