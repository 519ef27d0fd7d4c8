"""The scheduler: what a tick does, when one is needed, and the loop around it."""

from __future__ import annotations

from datetime import datetime
from itertools import count
from typing import Any

import pytest

from activities import clock
from activities.models import Activity
from execution.models import Worker, WorkerTask
from execution.scheduler import is_due, next_due, tick
from schedules.models import Occurrence, Schedule
from tests.away import outage
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    fates,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.loops import running_scheduler
from tests.processes import scheduler, worker
from tests.refusing import database_that_refuses
from tests.waiting import wait_until

EVERY_MINUTE = {"cron": ["* * * * *"]}


def minutes(number: float) -> datetime:
    return NOW + seconds(60 * number)


@pytest.mark.django_db(transaction=True)
class TestTick:
    def test_a_part_that_fails_does_not_stop_the_others(self, caplog: pytest.LogCaptureFixture) -> None:
        due = make_schedule(spec=EVERY_MINUTE)
        bad = make_schedule(spec=EVERY_MINUTE, name="Bad")
        Schedule.objects.filter(pk=bad.pk).update(processed_until=None, next_run_at=None)
        dead = make_worker()
        start(step("orphan"))
        claim(dead)
        dead.stop(NOW)
        with database_that_refuses("NEW.name = 'Bad'", table="schedules_schedule"):
            tick(minutes(1))
        assert "fill failed" in caplog.text
        assert fates(due) == [("started", "")]
        assert WorkerTask.objects.get(name="orphan").status == "queued"


@pytest.mark.django_db
class TestIsDue:
    def test_nothing_is_due_in_an_empty_house(self) -> None:
        assert not is_due(NOW)
        assert next_due(NOW) is None

    @pytest.mark.parametrize("what", ["a time", "an occurrence", "the end of a snooze"])
    def test_what_has_come_and_not_before(self, what: str) -> None:
        match what:
            case "a time":
                make_schedule(spec=EVERY_MINUTE)
            case "an occurrence":
                Occurrence.manual(make_schedule(), initiator=SOMEBODY, now=minutes(1)).save()
            case "the end of a snooze":
                make_schedule().pause(initiator=SOMEBODY, now=NOW, until=minutes(1))
        assert [is_due(minutes(at)) for at in (0.99, 1)] == [False, True]

    def test_an_execution_that_ended_unaccounted(self) -> None:
        start()
        assert not is_due(NOW)
        run_until_idle()
        assert is_due(NOW)

    def test_a_schedule_without_a_cursor(self) -> None:
        make_schedule()
        Schedule.objects.update(processed_until=None)
        assert is_due(NOW)

    @pytest.mark.parametrize("verb", ["pause", "close"])
    def test_what_a_paused_or_closed_schedule_holds_is_not(self, verb: str) -> None:
        schedule = make_schedule(spec=EVERY_MINUTE)
        getattr(schedule, verb)(initiator=SOMEBODY, now=NOW)
        tick(minutes(1.5))
        assert not is_due(minutes(1.5))

    def test_a_broken_schedule_is_not_due_again_and_again(self) -> None:
        make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.update(spec={"cron": ["broken"]})
        tick(minutes(1))
        assert not is_due(minutes(1))

    def test_after_a_tick_nothing_is_due(self) -> None:
        make_schedule(spec=EVERY_MINUTE)
        make_schedule(spec=EVERY_MINUTE, overlap="allow_all")
        tick(minutes(7))
        assert not is_due(minutes(7))


@pytest.mark.django_db
class TestNextDue:
    def test_it_is_the_earliest_of_times_pending_occurrences_and_ends_of_pauses(self) -> None:
        """What is due already does not count."""
        hourly = make_schedule(spec={"cron": ["0 * * * *"]})
        assert next_due(NOW) == minutes(60)
        Occurrence.manual(hourly, initiator=SOMEBODY, now=minutes(30)).save()
        assert next_due(NOW) == minutes(30)
        make_schedule().pause(initiator=SOMEBODY, now=NOW, until=minutes(10))
        assert next_due(NOW) == minutes(10)
        make_schedule(spec=EVERY_MINUTE)
        assert next_due(NOW) == minutes(1)
        assert next_due(minutes(1)) == minutes(10)


@pytest.mark.live
@pytest.mark.django_db(transaction=True)
class TestRunscheduler:
    """With a lease of a day, it does nothing by itself for half a day."""

    LEASE = "86400"

    def test_it_wakes_for_new_and_edited_times_and_for_the_end_of_a_snooze(self) -> None:
        edited = make_schedule(spec={"cron": ["0 0 1 1 *"]}, now=clock.now())
        snoozing = make_schedule(spec=EVERY_MINUTE, now=clock.now())
        with scheduler(JIM_LEASE_SECONDS=self.LEASE) as running:
            now = clock.now()
            at = soon(now)
            spec = {"at": [at.isoformat()]}
            snoozing.pause(initiator=SOMEBODY, now=now, until=now + seconds(1))
            wait_until(lambda: fresh(snoozing).status == "running")
            edited.edit(token=1, initiator=SOMEBODY, now=now, changes={"spec": spec})
            new = make_schedule(spec=spec, now=now)
            for schedule in (edited, new):
                wait_until(schedule.executions.exists)
                assert schedule.executions.get().started_at >= at
            assert running.terminate() == 0

    def test_what_a_killed_worker_ran_is_queued_again_long_before_its_lease_ends(self, settings: Any) -> None:
        settings.JIM_LEASE_SECONDS = int(self.LEASE)
        execution = start(step("work", 0, "wait_for_ever", isolation="process"), now=clock.now())
        with running_scheduler():
            with worker("--processes", "1", JIM_LEASE_SECONDS=self.LEASE) as victim:
                wait_until(Activity.objects.filter(status="in_progress", message="waiting").exists)
                victim.process.kill()
                victim.process.wait()
            wait_until(WorkerTask.objects.queued().exists)
        assert WorkerTask.objects.get(execution=execution).attempt == 2
        assert Worker.objects.get().status == "dead"

    def test_what_became_due_while_the_database_was_away_starts_when_it_is_back(self) -> None:
        with scheduler() as running:
            for later in count(3):
                now = clock.now()
                at = soon(now, later)
                schedule = make_schedule(spec={"at": [at.isoformat()]}, now=now)
                with outage():
                    is_early = not schedule.executions.exists()  # else its time came before the outage
                    wait_for(at)
                wait_until(schedule.executions.exists)
                if is_early:
                    break
            assert running.terminate() == 0


def wait_for(at: datetime) -> None:
    wait_until(lambda: clock.estimate() > at)


def soon(now: datetime, later: int = 3) -> datetime:
    """A whole second."""
    return now.replace(microsecond=0) + seconds(later)
