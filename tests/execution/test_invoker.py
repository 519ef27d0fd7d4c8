"""Where occurrences become executions, and ended executions are counted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from execution.loops.invoker import invoke
from execution.loops.manual_runs import Overlapping, trigger
from execution.models import Execution, WorkerTask
from operations.initiator import Initiator
from schedules.generator import generate
from schedules.models import Occurrence, Refused, Schedule, Step
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    everything,
    fates,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db
EVERY_MINUTE = {"cron": ["* * * * *"]}


def minutes(number: float) -> datetime:
    return NOW + seconds(60 * number)


def generate_and_invoke(at: float) -> None:
    generate(minutes(at))
    invoke(minutes(at))


def run_now(schedule: Schedule, **options: Any) -> Execution:
    occurrence = trigger(schedule, initiator=SOMEBODY, now=options.pop("now", NOW), **options)
    return Execution.objects.get(occurrence=occurrence)


class TestInvoke:
    def test_a_skip_is_dated_no_earlier_than_the_start_of_what_blocks_it(self) -> None:
        """Whoever waited for the lock read the clock before that."""
        schedule = make_schedule(spec=EVERY_MINUTE)
        generate(minutes(1))
        blocker = run_now(schedule, now=minutes(1) + seconds(5))
        invoke(minutes(1) + seconds(2))
        skipped = Occurrence.objects.get(source="auto")
        assert (skipped.status, skipped.blocked_by) == ("skipped", blocker.pk)
        assert skipped.settled_at == blocker.started_at

    def test_a_due_occurrence_starts_an_execution_whose_steps_learn_its_nominal_time(self) -> None:
        schedule = make_schedule(step("a"), step("b", 1), spec=EVERY_MINUTE, name="Nightly")
        generate_and_invoke(1.5)
        execution = Execution.objects.get()
        occurrence = Occurrence.objects.get()
        assert (occurrence.status, occurrence.settled_at) == ("started", minutes(1.5))
        assert (execution.occurrence, execution.schedule) == (occurrence, schedule)
        assert (execution.status, execution.started_at) == ("in_progress", minutes(1.5))
        assert WorkerTask.objects.filter(execution=execution).count() == 2
        root = execution.activity
        by = root.initiator_type, root.initiator_id, root.initiator_name
        assert by == ("schedule", str(schedule.pk), "Nightly")
        (task,) = claim(make_worker(), now=minutes(2))
        assert (task.work.nominal_at, task.work.schedule_name) == (minutes(1).isoformat(), "Nightly")

    def test_one_that_is_being_cancelled_still_blocks(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        generate_and_invoke(1)
        worker, execution = make_worker(), Execution.objects.get()
        (task,) = claim(worker, now=minutes(1))
        execution.cancel(initiator=SOMEBODY, now=minutes(1))
        generate_and_invoke(2)
        assert [status for status, _ in fates(schedule)] == ["started", "skipped"]
        end(worker, task, status="cancelled", interrupted="cancel", now=minutes(2.5))
        generate_and_invoke(3)
        assert [status for status, _ in fates(schedule)] == ["started", "skipped", "started"]

    def test_invoking_twice_is_invoking_once(self) -> None:
        make_schedule(spec=EVERY_MINUTE)
        generate_and_invoke(2)
        before = everything()
        invoke(minutes(2))
        assert everything() == before

    @pytest.mark.parametrize("one_look", [2, 3, 100])
    def test_more_schedules_than_a_pass_holds_are_all_started(
        self, one_look: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("execution.loops.invoker.SCHEDULES_PER_PASS", 2)
        monkeypatch.setattr("execution.loops.invoker.SCHEDULES_PER_LOOK", one_look)
        for _ in range(5):
            make_schedule(spec=EVERY_MINUTE)
        generate_and_invoke(1)
        assert Execution.objects.count() == 5


class TestABadScheduleStopsNobody:
    def test_one_whose_start_the_database_refuses_says_so_and_the_others_start(self) -> None:
        bad = make_schedule(spec=EVERY_MINUTE, name="Bad")
        others = [make_schedule(spec=EVERY_MINUTE) for _ in range(3)]
        with database_that_refuses("NEW.schedule_name = 'Bad'", table="execution_execution", event="INSERT"):
            generate_and_invoke(1)
        ((status, reason),) = fates(bad)
        assert status == "skipped"
        assert reason.startswith("could not be started: this row is refused")
        assert fresh(bad).skipped_count == 1
        for schedule in others:
            assert fates(schedule) == [("started", "")]

    def test_trouble_that_may_pass_leaves_everything_to_the_next_tick(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        generate(minutes(1))
        with database_that_refuses("1 = 1", table="execution_execution", event="INSERT", error="trouble"):
            invoke(minutes(1))
        assert fates(schedule) == [("pending", "")]
        invoke(minutes(1))
        assert fates(schedule) == [("started", "")]


class TestAccounting:
    def test_an_ended_execution_is_counted_once(self) -> None:
        execution = start(step("a", 0, "fail"))
        run_until_idle()
        invoke(NOW + seconds(1))
        schedule = execution.schedule
        assert schedule is not None
        assert fresh(execution).accounted_at == NOW + seconds(1)
        assert (fresh(schedule).last_outcome, fresh(schedule).failed_count) == ("failed", 1)
        before = everything()
        invoke(NOW + seconds(2))
        assert everything() == before

    def test_the_last_outcome_is_that_of_the_one_that_ended_last(self) -> None:
        schedule = make_schedule(overlap="allow_all")
        first, second = run_now(schedule), run_now(schedule)
        worker = make_worker()
        tasks = {task.execution_id: task for task in claim(worker)}
        end(worker, tasks[second.pk], now=NOW + seconds(5))
        end(worker, tasks[first.pk], status="failed_with_error", now=NOW + seconds(9))
        invoke(NOW + seconds(10))
        assert fresh(schedule).last_outcome == "failed"


@pytest.mark.django_db(transaction=True)
def test_whoever_cancels_what_was_queued_settles_it_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """As whoever finishes an execution does: nothing waits for a tick."""
    monkeypatch.setattr(clock, "now", lambda: NOW)
    execution = start()
    execution.cancel(initiator=SOMEBODY, now=NOW)
    assert fresh(execution).accounted_at == NOW


class TestTrigger:
    def test_who_asked_is_on_record_and_carried_by_every_activity(self) -> None:
        schedule = make_schedule(step("a"))
        key = Initiator("api_key", "k1", "ci")
        trigger(schedule, initiator=key, now=NOW)
        record = Activity.objects.get(operation="trigger")
        assert (record.target_id, record.initiator_name) == (str(schedule.pk), "ci")
        runs = Activity.objects.filter(operation=Activity.RUN)
        by = set(runs.values_list("initiator_type", "initiator_id", "initiator_name"))
        assert by == {("api_key", "k1", "ci")}

    def test_what_waited_before_starts_first_and_is_named(self) -> None:
        """Its predecessor has ended, and nobody has looked since."""
        schedule = make_schedule(overlap="buffer_all")
        ended = run_now(schedule)
        waiting = trigger(schedule, initiator=SOMEBODY, now=NOW)
        ended.terminate(initiator=SOMEBODY, now=NOW)
        assert fresh(waiting).status == "pending"
        with pytest.raises(Overlapping) as error:
            trigger(schedule, initiator=SOMEBODY, now=NOW, overlap="skip")
        assert error.value.blocked_by == Execution.objects.get(occurrence=waiting).pk
        assert [status for status, _ in fates(schedule)] == ["started", "started"]

    def test_a_broken_spec_does_not_matter(self) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.update(spec={"cron": ["broken"]})
        generate(minutes(1))
        assert run_now(schedule).status == Execution.Status.IN_PROGRESS

    def test_without_steps_it_is_refused_and_nothing_changes(self) -> None:
        schedule = make_schedule()
        Step.objects.all().delete()
        before = everything()
        with pytest.raises(Refused, match="no steps"):
            trigger(schedule, initiator=SOMEBODY, now=NOW)
        assert everything() == before
