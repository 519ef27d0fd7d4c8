"""The scheduler: what a tick does, when one is needed, and the loop around it."""

from __future__ import annotations

import os
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import execution.loops.scheduler
from database import clock
from execution.children.lifeline import Lifeline
from execution.loops import recovery
from execution.loops.scheduler import SchedulerLoop, is_due, next_due, tick
from execution.models import Chore, WorkerTask
from execution.models.chore import is_ticking
from schedules.models import Occurrence, Schedule
from tests.away import outage
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)
from tests.processes import scheduler
from tests.refusing import database_that_refuses
from tests.waiting import wait_until

EVERY_MINUTE = {"cron": ["* * * * *"]}


def minutes(number: float) -> datetime:
    return NOW + seconds(60 * number)


@pytest.mark.django_db(transaction=True)
def test_a_part_of_a_tick_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
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
    assert due.executions.exists()
    assert WorkerTask.objects.get(name="orphan").status == "queued"


@pytest.mark.django_db
def test_a_proven_death_is_noticed_however_much_else_changes(settings: Any, tmp_path: Path) -> None:
    settings.JIM_DATA_DIR = tmp_path
    loop, worker = SchedulerLoop(), make_worker(clock.now())
    loop._tick()
    os.close(Lifeline(worker.pk).fd)
    loop.woken.set()
    assert loop._sleep() is False
    loop._tick()
    assert fresh(worker).status == "dead"


@pytest.mark.django_db
def test_recovery_goes_by_the_time_after_settling_however_long_that_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that works until it is found dead has no attempt that ended before."""
    times, recovered = [NOW, NOW + seconds(30)], list[datetime]()
    monkeypatch.setattr(clock, "now", lambda: times[0])
    monkeypatch.setattr(execution.loops.scheduler, "is_due", lambda now: True)
    monkeypatch.setattr(execution.loops.scheduler, "OPENING", [])
    monkeypatch.setattr(execution.loops.scheduler, "SETTLING", [lambda now: times.pop(0)])
    monkeypatch.setattr(execution.loops.scheduler, "RECOVERING", [recovered.append])
    SchedulerLoop()._tick()
    assert recovered == [NOW + seconds(30)]


@pytest.mark.django_db
class TestIsDue:
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

    def test_an_execution_that_ended_unaccounted_and_a_schedule_without_a_cursor(self) -> None:
        start()
        assert not is_due(NOW)
        run_until_idle()
        assert is_due(NOW)
        tick(NOW)
        assert not is_due(NOW)
        Schedule.objects.update(processed_until=None)
        assert is_due(NOW)

    def test_after_a_tick_nothing_is_due_also_of_what_is_paused_closed_or_broken(self) -> None:
        for overlap in ("skip", "allow_all"):
            make_schedule(spec=EVERY_MINUTE, overlap=overlap)
        make_schedule(spec=EVERY_MINUTE).pause(initiator=SOMEBODY, now=NOW)
        make_schedule(spec=EVERY_MINUTE).close(initiator=SOMEBODY, now=NOW)
        broken = make_schedule(spec=EVERY_MINUTE)
        Schedule.objects.filter(pk=broken.pk).update(spec={"cron": ["broken"]})
        tick(minutes(1.5))
        assert not is_due(minutes(1.5))

    def test_the_next_time_is_the_earliest_of_times_pending_occurrences_and_ends_of_pauses(self) -> None:
        """What is due already does not count."""
        assert next_due(NOW) is None
        hourly = make_schedule(spec={"cron": ["0 * * * *"]})
        assert next_due(NOW) == minutes(60)
        Occurrence.manual(hourly, initiator=SOMEBODY, now=minutes(30)).save()
        assert next_due(NOW) == minutes(30)
        make_schedule().pause(initiator=SOMEBODY, now=NOW, until=minutes(10))
        assert next_due(NOW) == minutes(10)
        make_schedule(spec=EVERY_MINUTE)
        assert next_due(NOW) == minutes(1)
        assert next_due(minutes(1)) == minutes(10)


@pytest.mark.django_db
class TestLastTick:
    """What health, metrics and the pages' banner know about the schedulers."""

    @pytest.mark.parametrize(
        ("lease", "age", "expected"), [(60, 0, True), (60, 119, True), (60, 120, False), (600, 599, True)]
    )
    def test_one_that_ticked_within_two_minutes_or_a_long_lease_is_at_work(
        self, settings: Any, lease: int, age: int, expected: bool
    ) -> None:
        settings.JIM_LEASE_SECONDS = lease
        assert not is_ticking(Chore.objects.last_tick(), now=NOW)
        recovery.bury_expired(NOW)
        assert is_ticking(Chore.objects.last_tick(), now=NOW + seconds(age)) == expected

    def test_the_loop_notes_when_it_ticked_and_how_long_that_took(self) -> None:
        SchedulerLoop()._tick()
        noted = Chore.objects.last_tick()
        assert noted is not None
        assert noted.last_run_at is not None
        assert (noted.took_seconds or 0) > 0


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
            wait_until(Schedule.objects.filter(pk=snoozing.pk, status="active").exists)
            edited.edit(token=1, initiator=SOMEBODY, now=now, changes={"spec": spec})
            new = make_schedule(spec=spec, now=now)
            for schedule in (edited, new):
                wait_until(schedule.executions.exists)
                assert schedule.executions.get().started_at >= at
            assert running.terminate() == 0

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
