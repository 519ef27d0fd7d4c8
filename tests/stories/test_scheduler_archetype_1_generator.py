"""The Generator: it processes the spec up to now and hands what it finds to the Invoker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from execution.loops.scheduler import next_due, tick
from execution.models import Execution
from schedules.generator import generate
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, fresh, make_schedule
from tests.timeline import ledger, minute, minutes

pytestmark = pytest.mark.django_db
EVERY_FIVE = {"every": ["5m"]}


def test_it_goes_on_from_the_last_processed_time_to_now_and_no_further() -> None:
    """While the spec has a next time, a buffered start is created; the next generation is for the next."""
    schedule = make_schedule(spec=EVERY_FIVE)
    assert (schedule.processed_until, schedule.next_run_at) == (NOW, minutes(5))
    generate(minutes(4.99))
    assert times(schedule) == []
    generate(minutes(17))
    assert ledger(schedule) == {5: "pending", 10: "pending", 15: "pending"}
    assert (fresh(schedule).processed_until, fresh(schedule).next_run_at) == (minutes(17), minutes(20))
    assert next_due(minutes(17)) == minutes(20)
    generate(minutes(20))
    assert times(schedule) == [5, 10, 15, 20]


def test_a_spec_without_a_next_time_waits_for_nothing_and_runs_on() -> None:
    schedule = make_schedule(spec={"at": [minutes(5).isoformat()]})
    generate(minutes(5))
    ended = fresh(schedule)
    assert (ended.status, ended.next_run_at, times(ended)) == ("active", None, [5])
    assert ended.next_times(10, now=minutes(5)) == []


def test_what_has_jitter_is_passed_to_the_invoker_when_it_is_planned() -> None:
    """The nominal time counts and is on record; the start comes a little later."""
    schedule = make_schedule(spec={"every": ["1h"], "jitter": "30m"}, name="Spread")
    tick(minutes(60))
    (occurrence,) = schedule.occurrences.all()
    assert occurrence.nominal_at == minutes(60) < occurrence.planned_at
    assert next_due(minutes(60)) == occurrence.planned_at
    tick(occurrence.planned_at - timedelta(microseconds=1))
    assert fresh(occurrence).status == "pending"
    tick(occurrence.planned_at)
    execution = Execution.objects.get()
    assert (execution.started_at, execution.occurrence) == (occurrence.planned_at, occurrence)


class TestRescheduling:
    """Regenerating after a spec change."""

    def test_what_the_old_spec_owes_is_generated_first_and_the_new_one_begins_now(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        generate(minutes(6))
        edit(schedule, 17, spec={"every": ["10m"]})
        assert times(schedule) == [5, 10, 15]
        assert (fresh(schedule).processed_until, fresh(schedule).next_run_at) == (minutes(17), minutes(20))
        generate(minutes(45))
        assert times(schedule) == [5, 10, 15, 20, 30, 40]

    def test_a_time_of_both_specs_occurs_once(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        edit(schedule, 10, spec={"every": ["10m"]})
        edit(schedule, 10, spec=EVERY_FIVE)
        generate(minutes(20))
        assert times(schedule) == [5, 10, 15, 20]

    def test_one_that_is_only_run_by_hand_has_no_next_time(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        edit(schedule, 7, spec={})
        generate(minutes(60))
        assert (times(schedule), fresh(schedule).next_run_at) == ([5], None)


def edit(schedule: Schedule, at: float, **changes: Any) -> None:
    schedule.edit(token=fresh(schedule).token, initiator=SOMEBODY, now=minutes(at), changes=changes)


def times(schedule: Schedule) -> list[int]:
    """The nominal times that have occurred, in minutes."""
    return sorted(minute(at) for at in schedule.occurrences.values_list("nominal_at", flat=True))
