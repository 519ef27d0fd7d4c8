"""Alerts are states: overdue schedules, late executions, failures that may pause a schedule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.exceptions import ValidationError

from execution.invoker import invoke, trigger
from execution.models import Execution
from execution.scheduler import time_out
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


def paused_after(outcomes: str, **fields: Any) -> str:
    """Those of the outcomes after which the schedule is paused."""
    schedule = make_schedule(pause_on_failure=True, timeout_seconds=1800, **fields)
    for number in range(len(outcomes)):
        run(schedule, outcomes[number], since=number)
        if fresh(schedule).is_paused:
            return outcomes[: number + 1]
    return ""


class TestOverdue:
    def test_when_its_time_has_passed_by_more_than_the_grace_without_an_occurrence(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        moments = [NOW, hours(1), hours(1) + seconds(60), hours(1) + seconds(61), hours(48)]
        states = [schedule.is_overdue(moment) for moment in moments]
        assert states == [False, False, False, True, True]
        listed = [Schedule.objects.overdue(moment).contains(schedule) for moment in moments]
        assert listed == states

    def test_the_grace_is_a_setting(self, settings: LazySettings) -> None:
        settings.JIM_OVERDUE_SECONDS = 600
        schedule = make_schedule(spec=HOURLY)
        assert not schedule.is_overdue(hours(1) + seconds(600))
        assert Schedule.objects.overdue(hours(1) + seconds(601)).get() == schedule

    def test_not_any_more_when_the_scheduler_has_come(self) -> None:
        schedule = make_schedule(spec=HOURLY)
        generate(hours(5))
        assert not fresh(schedule).is_overdue(hours(5))
        assert not Schedule.objects.overdue(hours(5)).exists()

    def test_a_paused_one_is_overdue_too_as_its_times_are_recorded(self) -> None:
        schedule = make_schedule(spec=HOURLY, paused=True)
        assert schedule.is_overdue(hours(2))
        assert Schedule.objects.overdue(hours(2)).exists()

    def test_never_without_a_next_time(self) -> None:
        by_hand, closed = make_schedule(spec={}), make_schedule(spec=HOURLY)
        broken = make_schedule(spec=HOURLY)
        closed.close(initiator=SOMEBODY, now=NOW)
        Schedule.objects.filter(pk=broken.pk).update(spec=["broken"])
        generate(hours(2))
        assert not any(fresh(schedule).is_overdue(hours(9)) for schedule in (by_hand, closed, broken))
        assert not Schedule.objects.overdue(hours(9)).exists()


class TestLate:
    def test_when_it_outlives_its_deadline_and_still_runs(self) -> None:
        execution = start(deadline_seconds=600)
        moments = [NOW, NOW + seconds(600), NOW + seconds(601)]
        assert [execution.is_late(moment) for moment in moments] == [False, False, True]
        listed = [Execution.objects.late(moment).contains(execution) for moment in moments]
        assert listed == [False, False, True]
        assert fresh(execution).status == "in_progress"

    def test_one_that_has_ended_was_late_or_not_for_good(self) -> None:
        worker = make_worker()
        for after, was_late in ((600, False), (601, True)):
            execution = start(deadline_seconds=600)
            end(worker, *claim(worker), now=NOW + seconds(after))
            assert fresh(execution).status == "completed"
            assert fresh(execution).is_late(hours(24)) is was_late
        assert not Execution.objects.late(hours(24)).exists()

    def test_never_without_a_deadline(self) -> None:
        execution = start()
        assert not execution.is_late(hours(24 * 365))
        assert not Execution.objects.late(hours(24 * 365)).exists()

    def test_the_deadline_is_that_of_its_start(self) -> None:
        execution = start(deadline_seconds=600)
        schedule = execution.schedule
        assert schedule is not None
        schedule.edit(token=schedule.token, initiator=SOMEBODY, now=NOW, changes={"deadline_seconds": None})
        assert fresh(execution).is_late(hours(1))


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
        assert (counted.failed_count, counted.status) == (failed, "running")

    def test_a_cancelled_execution_says_nothing_about_whether_it_works(self) -> None:
        schedule = make_schedule()
        run(schedule, "fx")
        assert (fresh(schedule).recent_outcomes, fresh(schedule).last_outcome) == ("f", "cancelled")
        assert fresh(schedule).last_failure != ""

    def test_the_last_failure_is_kept_until_one_completes(self) -> None:
        schedule = make_schedule()
        run(schedule, "f")
        assert "it broke" in fresh(schedule).last_failure
        run(schedule, "c", since=1)
        assert fresh(schedule).last_failure == ""

    def test_no_more_outcomes_are_kept_than_can_be_asked_for(self) -> None:
        schedule = make_schedule()
        Schedule.objects.update(recent_outcomes="c" * 100)
        run(schedule, "f")
        assert fresh(schedule).recent_outcomes == "f" + "c" * 99


class TestPauseOnFailure:
    @pytest.mark.parametrize(
        ("failures", "among", "outcomes", "paused"),
        [
            (1, 1, "cxf", "cxf"),
            (3, 3, "ffcfff", "ffcfff"),
            (3, 3, "ffxt", "ffxt"),
            (3, 5, "fcfcf", "fcfcf"),
            (3, 5, "fccfccf", ""),
        ],
    )
    def test_when_so_many_of_the_last_executions_failed(
        self, failures: int, among: int, outcomes: str, paused: str
    ) -> None:
        assert paused_after(outcomes, failures_to_pause=failures, failures_among=among) == paused

    @pytest.mark.parametrize(
        ("failures", "among", "outcomes", "note"),
        [
            (1, 1, "f", "Paused by itself. The last execution failed: "),
            (3, 5, "fcff", "Paused by itself. 3 of the last 4 executions failed: "),
            (3, 5, "fcccfff", "Paused by itself. 3 of the last 5 executions failed: "),
        ],
    )
    def test_the_note_says_so(self, failures: int, among: int, outcomes: str, note: str) -> None:
        schedule = make_schedule(pause_on_failure=True, failures_to_pause=failures, failures_among=among)
        run(schedule, outcomes)
        paused = fresh(schedule)
        assert paused.status == "paused"
        assert paused.pause_note.startswith(note)
        assert paused.pause_note.endswith(paused.last_failure)
        assert "it broke" in paused.pause_note

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
        assert fresh(schedule).status == "running"
        run(schedule, "f", since=6)
        assert fresh(schedule).status == "paused"

    @pytest.mark.parametrize("outcome", ["c", "x"])
    def test_failures_of_the_past_do_not_pause_it_when_it_is_asked_for_later(self, outcome: str) -> None:
        schedule = make_schedule(failures_to_pause=2, failures_among=5)
        run(schedule, "ff")
        current = fresh(schedule)
        current.edit(
            token=current.token, initiator=SOMEBODY, now=hours(2), changes={"pause_on_failure": True}
        )
        run(schedule, outcome, since=3)
        assert fresh(schedule).status == "running"

    @pytest.mark.parametrize(
        "fields",
        [
            {"failures_to_pause": 0},
            {"failures_to_pause": 3, "failures_among": 2},
            {"failures_to_pause": 1, "failures_among": 101},
        ],
    )
    def test_numbers_that_make_no_sense_are_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError) as error:
            make_schedule(pause_on_failure=True, **fields)
        assert set(error.value.message_dict) <= {"failures_to_pause", "failures_among"}
