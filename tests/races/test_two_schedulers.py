"""Two schedulers at the same moment, while people change what they work on: every promise is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, connections

from database import clock
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import is_due, tick
from execution.models import Worker, WorkerTask
from execution.models.attempt import ClaimedTask
from schedules import generator
from schedules.generator import generate
from schedules.models import Backfill, Conflict, Overlap, Refused, Schedule, SharedCalendar, timetable
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
    step,
)
from tests.fleet import tell
from tests.invariants import Numbers, violations
from tests.races.meeting import at_once, queue_up

pytestmark = pytest.mark.django_db(transaction=True)

SEED = 20261116
ROUNDS = {"postgresql": 25, "sqlite": 10}
ROUND = seconds(4)
DEEDS_PER_ROUND = 4
SPECS = [{"every": [every]} for every in ("1s", "2s", "3s", {"every": "5s", "offset": "2s"})]
WORKDAYS = {"every": ["2s"], "exclude": [{"calendar": "days off"}]}


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A tick survives whatever goes wrong in a part of it, and says so."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def edit(schedule: Schedule, dice: Random, now: datetime) -> None:
    changes: dict[str, Any] = dice.choice(
        [
            {"spec": dice.choice(SPECS)},
            {"spec": WORKDAYS},
            {"overlap": dice.choice(Overlap.values)},
            {"remaining": dice.choice([None, 1, 5])},
            {"catch_up_seconds": dice.choice([None, 0, 60])},
        ]
    )
    schedule.edit(token=schedule.token, initiator=SOMEBODY, now=now, changes=changes)


def pause(schedule: Schedule, dice: Random, now: datetime) -> None:
    until = dice.choice([None, now + seconds(5), now + seconds(15)])
    schedule.pause(initiator=SOMEBODY, now=now, until=until)


def resume(schedule: Schedule, dice: Random, now: datetime) -> None:
    schedule.resume(initiator=SOMEBODY, now=now, discard=dice.random() < 0.5)


def skip_next(schedule: Schedule, dice: Random, now: datetime) -> None:
    schedule.skip_next(initiator=SOMEBODY, now=now)


def run(schedule: Schedule, dice: Random, now: datetime) -> None:
    key, overlap = f"key {dice.randrange(10**9)}", dice.choice(["", *Overlap.values])
    for _ in range(2):
        trigger(schedule, initiator=SOMEBODY, now=now, key=key, overlap=overlap)


def backfill(schedule: Schedule, dice: Random, now: datetime) -> None:
    Backfill.objects.ask(
        schedule,
        start_at=now - seconds(20),
        end_at=now,
        which=dice.choice(Backfill.Which.values),
        overlap=dice.choice(Overlap.values),
        initiator=SOMEBODY,
        now=now,
    )


def cancel_backfill(schedule: Schedule, dice: Random, now: datetime) -> None:
    for asked in schedule.backfills.order_by("-pk")[:1]:
        asked.cancel(initiator=SOMEBODY, now=now)


def edit_calendar(schedule: Schedule, dice: Random, now: datetime) -> None:
    calendar = SharedCalendar.objects.get()
    start = now + seconds(dice.randrange(-10, 10))
    excluded = [{"from": start.isoformat(), "until": (start + seconds(10)).isoformat()}]
    calendar.edit(token=calendar.token, initiator=SOMEBODY, now=now, changes={"excluded": excluded})


def close_and_define(schedule: Schedule, dice: Random, now: datetime) -> None:
    schedule.close(initiator=SOMEBODY, now=now)
    define(schedule.overlap, now=now, paused=dice.random() < 0.3, run_at_once=dice.random() < 0.5)


DEEDS = {
    edit: 8,
    pause: 2,
    resume: 4,
    skip_next: 2,
    run: 4,
    backfill: 3,
    cancel_backfill: 1,
    edit_calendar: 2,
    close_and_define: 1,
}


def define(overlap: str, **fields: Any) -> Schedule:
    fields |= {"pause_on_failure": True, "failures_to_pause": 2, "failures_among": 3}
    return make_schedule(step(), spec=SPECS[1], overlap=overlap, **fields)


def office_hours(dice: Random, done: Counter[str], now: datetime) -> None:
    """What people do meanwhile; they read the clock before they wait for anything."""
    for deed in dice.choices(list(DEEDS), list(DEEDS.values()), k=DEEDS_PER_ROUND):
        schedule = dice.choice(Schedule.objects.open().order_by("pk"))
        try:
            deed(schedule, dice, now - seconds(dice.random() * 0.9))
            done[deed.__name__] += 1
        except (Conflict, Refused, ValidationError):
            done["refused"] += 1


def work(worker: Worker, dice: Random, now: datetime) -> None:
    """Some steps end, some fail, some take longer."""
    claim(worker, now=now)
    for task in map(ClaimedTask.of, WorkerTask.objects.filter(worker=worker)):
        ended = dice.choices([end, break_down, None], [6, 2, 2])[0]
        if ended is not None:
            ended(worker, task, now=now)


@pytest.mark.long
def test_two_schedulers_and_an_office(
    monkeypatch: pytest.MonkeyPatch, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.JIM_BUFFER_LIMIT, settings.JIM_BACKFILL_SLICE = 12, 3
    monkeypatch.setattr(timetable, "TIMES_PER_PASS", 5)
    now, dice, done = NOW, Random(SEED), Counter[str]()
    monkeypatch.setattr(clock, "now", lambda: now)
    SharedCalendar.objects.define("days off", [], initiator=SOMEBODY, now=now)
    for overlap in Overlap.values * 2:
        define(overlap)
    worker = make_worker(now)
    for _ in range(ROUNDS[connection.vendor]):
        now += ROUND
        assert worker.beat(now)
        meanwhile = [Random(dice.random()) for _ in range(2)]
        results = at_once(
            partial(tick, now),
            partial(tick, now),
            partial(office_hours, meanwhile[0], done, now),
            partial(work, worker, meanwhile[1], now),
        )
        assert results == [True, True, None, None]
    come_to_rest(worker, now)
    tell(f"two schedulers on {connection.vendor}: {dict(done)}; {Numbers.load()}", capsys)
    assert violations(now=now) == []
    assert done.total() == ROUNDS[connection.vendor] * DEEDS_PER_ROUND
    assert done["refused"] < done.total()


def come_to_rest(worker: Worker, now: datetime) -> None:
    for _ in range(200):
        tick(now)
        claim(worker, now=now)
        end(worker, *map(ClaimedTask.of, WorkerTask.objects.filter(worker=worker)), now=now)
        if not is_due(now) and not WorkerTask.objects.exists():
            return


def edit_times(schedule: Schedule, now: datetime) -> None:
    schedule.edit(token=schedule.token, initiator=SOMEBODY, now=now, changes={"spec": {"every": ["7s"]}})


def edit_days_off(schedule: Schedule, now: datetime) -> None:
    changes = {"excluded": [{"from": "2026-11-16T03:00:00Z", "until": "2026-11-16T04:00:00Z"}]}
    SharedCalendar.objects.get().edit(token=1, initiator=SOMEBODY, now=now, changes=changes)


CHANGES: dict[str, Callable[[Schedule, datetime], object]] = {
    "edit the times": edit_times,
    "edit the calendar": edit_days_off,
    "pause": lambda schedule, now: schedule.pause(initiator=SOMEBODY, now=now),
    "close": lambda schedule, now: schedule.close(initiator=SOMEBODY, now=now),
}


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> Schedule:
    """Ten passes have to be made for the next minute, and a tick makes as many."""
    monkeypatch.setattr(timetable, "TIMES_PER_PASS", 3)
    monkeypatch.setattr(generator, "PASSES_PER_TICK", 10)
    monkeypatch.setattr(clock, "now", lambda: NOW + seconds(60))
    SharedCalendar.objects.define("days off", [], initiator=SOMEBODY, now=NOW)
    return make_schedule(spec=WORKDAYS, overlap="allow_all")


@pytest.mark.parametrize("passes", [1, 9])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_passes(
    schedule: Schedule, change: Callable[[Schedule, datetime], object], passes: int
) -> None:
    """What was in force until then is owed up to that moment; from then on the change counts."""
    now = NOW + seconds(60)
    with after_commits(passes, lambda: at_once(partial(change, schedule, now))) as results:
        generate(now)
    assert results == [[None]]
    come_to_rest(make_worker(now), now + seconds(60))
    assert schedule.occurrences.filter(nominal_at__lte=now).count() == 30
    assert violations(now=now + seconds(60), moment=timedelta(0)) == []


@pytest.mark.parametrize("change", [edit_times, edit_days_off])
def test_a_change_that_waited_does_not_turn_back_the_cursor(
    schedule: Schedule, change: Callable[[Schedule, datetime], object]
) -> None:
    """It read the clock before a scheduler went on with the times of its schedule."""
    generate(NOW + seconds(60))
    change(schedule, NOW + seconds(42))
    schedule.refresh_from_db()
    assert schedule.processed_until == NOW + seconds(60)
    assert schedule.occurrences.count() == 30


def test_a_start_is_not_dated_before_the_end_that_it_waited_for() -> None:
    """What has to make way may have ended by itself, after the clock was read."""
    execution = start(overlap="terminate_other")
    worker = make_worker()
    (task,) = claim(worker)
    schedule = Schedule.objects.get()
    (started,) = queue_up(
        partial(trigger, schedule, initiator=SOMEBODY, now=NOW + seconds(1)),
        behind=partial(end, worker, task, now=NOW + seconds(2)),
    )
    assert fresh(execution).status == "completed"
    assert started.execution.started_at >= NOW + seconds(2)
    come_to_rest(worker, NOW + seconds(2))
    assert violations(now=NOW + seconds(2), moment=timedelta(0)) == []


@contextmanager
def after_commits(number: int, call: Callable[[], list[Any]]) -> Iterator[list[list[Any]]]:
    """Makes the call once, when this connection has committed so many times; yields what it returned."""
    commit, results, commits = connections["default"].commit, [], count(1)

    def commit_and_call() -> None:
        commit()
        if next(commits) == number:
            results.append(call())

    with patch.object(connections["default"], "commit", commit_and_call):
        yield results
