"""The Generator: it processes the spec up to now and hands what it finds to the Invoker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from execution.models import Execution
from execution.scheduler import next_due, tick
from schedules import generator
from schedules.generator import fill, generate
from schedules.models import Schedule
from schedules.models import schedule as schedule_module
from tests.base import NOW, SOMEBODY, everything, fresh, make_schedule
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


def test_cron_strings_calendars_and_one_off_times_are_one_spec() -> None:
    at = minutes(7)
    calendar = {"minute": "12", "hour": "3"}
    spec = {"cron": ["*/20 * * * *"], "every": ["15m"], "calendars": [calendar], "at": [at.isoformat()]}
    schedule = make_schedule(spec=spec)
    generate(minutes(45))
    assert times(schedule) == [7, 12, 15, 20, 30, 40, 45]


def test_a_spec_without_a_next_time_waits_for_nothing_and_runs_on() -> None:
    schedule = make_schedule(spec={"at": [minutes(5).isoformat()]})
    generate(minutes(5))
    ended = fresh(schedule)
    assert (ended.status, ended.next_run_at, times(ended)) == ("running", None, [5])
    assert ended.next_times(10, now=minutes(5)) == []


def test_the_batch_is_passed_to_the_invoker() -> None:
    schedule = make_schedule(spec=EVERY_FIVE)
    tick(minutes(5))
    assert ledger(schedule) == {5: "started 5"}
    assert Execution.objects.get().schedule == schedule


def test_a_long_way_behind_it_goes_in_batches_and_reaches_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_module, "TIMES_PER_PASS", 7)
    monkeypatch.setattr(generator, "OCCURRENCES_PER_PASS", 10)
    schedules = [make_schedule(spec=EVERY_FIVE) for _ in range(4)]
    ticks = 0
    while Schedule.objects.due(minutes(2 * 60)).exists():
        generate(minutes(2 * 60))
        ticks += 1
    assert ticks > 1
    for schedule in schedules:
        assert times(schedule) == list(range(5, 125, 5))
        assert fresh(schedule).processed_until == minutes(120)


def test_twice_adds_nothing_even_if_the_cursor_is_lost() -> None:
    schedule = make_schedule(spec=EVERY_FIVE)
    generate(minutes(17))
    before = everything()["Occurrence"]
    generate(minutes(17))
    Schedule.objects.update(processed_until=NOW, next_run_at=minutes(5))
    generate(minutes(17))
    assert everything()["Occurrence"] == before
    assert fresh(schedule).next_run_at == minutes(20)


def test_one_that_was_never_processed_begins_now_not_in_the_past() -> None:
    schedule = make_schedule(spec=EVERY_FIVE)
    Schedule.objects.update(processed_until=None, next_run_at=None)
    fill(minutes(12))
    generate(minutes(12))
    assert (times(schedule), fresh(schedule).next_run_at) == ([], minutes(15))


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

    def test_other_changes_leave_the_times_alone(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE)
        edit(schedule, 17, description="Nothing new about when.")
        assert (times(schedule), fresh(schedule).processed_until) == ([], NOW)
        generate(minutes(17))
        assert times(schedule) == [5, 10, 15]


class TestJitter:
    """The nominal time counts and is on record; the start comes a little later."""

    def test_it_is_planned_between_its_nominal_time_and_the_next(self) -> None:
        schedule = make_schedule(spec=EVERY_FIVE | {"jitter": "10m"}, name="Spread")
        generate(minutes(60))
        rows = schedule.occurrences.order_by("nominal_at")
        assert times(schedule) == list(range(5, 65, 5))
        delays = [row.planned_at - row.nominal_at for row in rows]
        assert all(timedelta(0) <= delay < timedelta(minutes=5) for delay in delays)
        assert len(set(delays)) > 6

    def test_it_starts_when_it_is_planned(self) -> None:
        schedule = make_schedule(spec={"every": ["1h"], "jitter": "30m"}, name="Spread")
        tick(minutes(60))
        (occurrence,) = schedule.occurrences.all()
        assert occurrence.planned_at > minutes(60)
        assert next_due(minutes(60)) == occurrence.planned_at
        tick(occurrence.planned_at - timedelta(microseconds=1))
        assert fresh(occurrence).status == "pending"
        tick(occurrence.planned_at)
        execution = Execution.objects.get()
        assert (execution.started_at, execution.occurrence) == (occurrence.planned_at, occurrence)

    def test_the_same_name_and_time_get_the_same_delay(self) -> None:
        spec = {"every": ["1h"], "jitter": "30m"}
        first = make_schedule(spec=spec, name="Spread")
        generate(minutes(60))
        first.close(initiator=SOMEBODY, now=minutes(60))
        again, other = make_schedule(spec=spec, name="Spread"), make_schedule(spec=spec, name="Other")
        generate(minutes(60))
        planned = [s.occurrences.get().planned_at for s in (first, again, other)]
        assert planned[0] == planned[1] != planned[2]


def edit(schedule: Schedule, at: float, **changes: Any) -> None:
    schedule.edit(token=fresh(schedule).token, initiator=SOMEBODY, now=minutes(at), changes=changes)


def times(schedule: Schedule) -> list[int]:
    """The nominal times that have occurred, in minutes."""
    return sorted(minute(at) for at in schedule.occurrences.values_list("nominal_at", flat=True))
