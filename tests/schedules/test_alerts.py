"""Alerts are states: overdue schedules, late executions, failures that may pause a schedule."""

from __future__ import annotations

from datetime import datetime

import pytest
from django.conf import LazySettings
from django.core.exceptions import ValidationError

from execution.loops.invoker import invoke
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import time_out
from execution.models import Execution
from schedules.generator import generate
from schedules.models import Schedule
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    fresh,
    make_schedule,
    make_worker,
    seconds,
    start,
)

pytestmark = pytest.mark.django_db
HOURLY = {"cron": ["0 * * * *"]}


def hours(number: float) -> datetime:
    return NOW + seconds(3600 * number)


def run(schedule: Schedule, outcomes: str, *, since: float = 0) -> None:
    """Executions by hand, an hour apart: c(ompletes), f(ails), x (is cancelled), t(imes out)."""
    for number, outcome in enumerate(outcomes):
        now = hours(since + number)
        trigger(schedule, initiator=SOMEBODY, now=now)
        execution = Execution.objects.latest("pk")
        worker = make_worker(now)
        if outcome == "t":
            time_out(now + seconds(3600))
        elif outcome == "x":
            execution.cancel(initiator=SOMEBODY, now=now)
        else:
            (break_down if outcome == "f" else end)(worker, *claim(worker, now=now), now=now)
        invoke(now + seconds(3600))
        assert fresh(execution).accounted_at is not None


class TestOverdue:
    def test_when_its_time_has_passed_by_more_than_the_grace_until_the_scheduler_comes(
        self, settings: LazySettings
    ) -> None:
        """Also a paused one, as its times are recorded."""
        schedules = make_schedule(spec=HOURLY), make_schedule(spec=HOURLY, paused=True)
        for grace in (60, 600):
            settings.JIM_OVERDUE_SECONDS = grace
            for moment, is_overdue in ((NOW, False), (hours(1) + seconds(grace), False), (hours(48), True)):
                assert [each.is_overdue(moment) for each in schedules] == [is_overdue] * 2
                assert Schedule.objects.overdue(moment).count() == (2 if is_overdue else 0)
            assert schedules[0].is_overdue(hours(1) + seconds(grace + 1))
            assert Schedule.objects.overdue(hours(1) + seconds(grace + 1)).count() == 2
        generate(hours(5))
        assert not any(fresh(each).is_overdue(hours(5)) for each in schedules)
        assert not Schedule.objects.overdue(hours(5)).exists()

    def test_never_without_a_next_time(self) -> None:
        by_hand, closed, broken = (make_schedule(spec=spec) for spec in ({}, HOURLY, HOURLY))
        closed.close(initiator=SOMEBODY, now=NOW)
        Schedule.objects.filter(pk=broken.pk).update(spec=["broken"])
        generate(hours(2))
        assert not any(fresh(schedule).is_overdue(hours(9)) for schedule in (by_hand, closed, broken))
        assert not Schedule.objects.overdue(hours(9)).exists()


class TestLate:
    def test_when_it_outlives_the_deadline_of_its_start_and_still_runs(self) -> None:
        execution, endless = start(deadline_seconds=600), start()
        schedule = Schedule.objects.earliest("pk")
        schedule.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"deadline_seconds": None})
        for after, is_late in ((0, False), (600, False), (601, True)):
            moment = NOW + seconds(after)
            assert fresh(execution).is_late(moment) is is_late
            assert list(Execution.objects.late(moment)) == [execution] * is_late
        assert fresh(execution).status == "in_progress"
        assert not endless.is_late(hours(24 * 365))

    def test_one_that_has_ended_was_late_or_not_for_good(self) -> None:
        worker = make_worker()
        for after, was_late in ((600, False), (601, True)):
            execution = start(deadline_seconds=600)
            end(worker, *claim(worker), now=NOW + seconds(after))
            assert fresh(execution).status == "completed"
            assert fresh(execution).is_late(hours(24)) is was_late
        assert not Execution.objects.late(hours(24)).exists()


class TestFailuresAreCounted:
    @pytest.mark.parametrize(
        ("outcomes", "in_a_row", "recently", "failed"),
        [
            ("", 0, 0, 0),
            ("ffc", 0, 2, 2),
            ("fcf", 1, 2, 2),
            ("fxf", 2, 2, 2),
            ("tf", 2, 2, 2),
            ("ffffffc", 0, 4, 6),
        ],
    )
    def test_in_a_row_and_among_the_last_five(
        self, outcomes: str, in_a_row: int, recently: int, failed: int
    ) -> None:
        schedule = make_schedule(failures_among=5, timeout_seconds=1800)
        run(schedule, outcomes)
        counted = fresh(schedule)
        assert (counted.failures_in_a_row, counted.failures_recently) == (in_a_row, recently)
        assert (counted.failed_count, counted.status) == (failed, "active")

    def test_the_last_failure_is_kept_until_one_completes(self) -> None:
        """A cancelled execution says nothing about whether it works."""
        schedule = make_schedule()
        run(schedule, "fx")
        assert "it broke" in fresh(schedule).last_failure
        assert (fresh(schedule).recent_outcomes, fresh(schedule).last_outcome) == ("f", "cancelled")
        run(schedule, "c", since=2)
        assert fresh(schedule).last_failure == ""

    def test_no_more_outcomes_are_kept_than_can_be_asked_for(self) -> None:
        schedule = make_schedule()
        Schedule.objects.update(recent_outcomes="c" * 100)
        run(schedule, "f")
        assert fresh(schedule).recent_outcomes == "f" + "c" * 99


class TestPauseOnFailure:
    @pytest.mark.parametrize(
        ("failures", "among", "outcomes", "note"),
        [
            (1, 1, "cxf", "The last execution failed: "),
            (3, 3, "ffcfff", "3 of the last 3 executions failed: "),
            (3, 3, "ffxf", "3 of the last 3 executions failed: "),
            (3, 5, "fcff", "3 of the last 4 executions failed: "),
            (3, 5, "fcfcf", "3 of the last 5 executions failed: "),
            (3, 5, "fccfccf", ""),
        ],
    )
    def test_when_so_many_of_the_last_executions_failed(
        self, failures: int, among: int, outcomes: str, note: str
    ) -> None:
        schedule = make_schedule(pause_on_failure=True, failures_to_pause=failures, failures_among=among)
        run(schedule, outcomes[:-1])
        assert fresh(schedule).status == "active"
        run(schedule, outcomes[-1], since=len(outcomes))
        paused = fresh(schedule)
        assert paused.status == ("paused" if note else "active")
        assert paused.pause_note == (f"Paused automatically. {note}{paused.last_failure}" if note else "")
        assert "it broke" in paused.last_failure

    def test_an_endless_error_makes_no_endless_note(self) -> None:
        schedule = make_schedule(pause_on_failure=True)
        schedule.count_outcome("failed", result=None, error="x" * 5_000)
        schedule.save()
        assert schedule.pause_over_failures(schedule.failing_note, now=NOW)
        assert len(fresh(schedule).pause_note) == 1_000

    def test_once_resumed_it_goes_on_unless_it_fails_again(self) -> None:
        schedule = make_schedule(pause_on_failure=True, failures_to_pause=3, failures_among=5)
        run(schedule, "fff")
        fresh(schedule).resume(initiator=SOMEBODY, now=hours(4))
        run(schedule, "x", since=5)
        assert fresh(schedule).status == "active"
        run(schedule, "f", since=6)
        assert fresh(schedule).status == "paused"

    @pytest.mark.parametrize("outcome", ["c", "x"])
    def test_failures_of_the_past_do_not_pause_it_when_it_is_asked_for_later(self, outcome: str) -> None:
        schedule = make_schedule(failures_to_pause=2, failures_among=5)
        run(schedule, "ff")
        fresh(schedule).edit(token=1, initiator=SOMEBODY, now=hours(2), changes={"pause_on_failure": True})
        run(schedule, outcome, since=3)
        assert fresh(schedule).status == "active"

    @pytest.mark.parametrize(("failures", "among"), [(0, 1), (3, 2), (1, 101)])
    def test_numbers_that_make_no_sense_are_refused(self, failures: int, among: int) -> None:
        with pytest.raises(ValidationError) as error:
            make_schedule(pause_on_failure=True, failures_to_pause=failures, failures_among=among)
        assert set(error.value.message_dict) <= {"failures_to_pause", "failures_among"}
