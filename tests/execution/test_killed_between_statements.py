"""A scheduler, or whoever changes a schedule, is killed before any commit: the next one makes it whole.

Every commit and every write outside of a transaction is a place to die. What was not committed is as if it
had never begun; from each state that commits leave behind, another scheduler finds its way, and nothing is
lost or done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import is_due, tick
from execution.models import Execution, Worker, WorkerTask, advance
from execution.models.attempt import ClaimedTask
from schedules.code_files import Library
from schedules.models import Backfill, Occurrence, Schedule, SharedCalendar, timetable
from schedules.reconcile import Author, reconcile
from tests.base import NOW, SOMEBODY, break_down, claim, end, make_schedule, make_worker, seconds, step
from tests.invariants import violations
from tests.killing import kept_state, kill_at

pytestmark = [
    pytest.mark.django_db(transaction=True),
    # Of Python 3.12 and newer: the threads of the process that runs the tests hold nothing that is needed.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]

DEADLY = NOW + seconds(180)
AFTERWARDS = NOW + seconds(275)
EVERY_MINUTE = {"every": ["1m"]}
BY: dict[str, Any] = {"initiator": SOMEBODY, "now": DEADLY}


class World:
    """Schedules of all kinds, some time after their start; at DEADLY much is to be done for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.worker = make_worker(DEADLY)
        with monkeypatch.context() as patched:
            # As if each process that ended an execution had died at that very moment.
            patched.setattr(advance, "_settle_after", lambda ids: None)
            self._define()
            for at in (NOW + seconds(60), NOW + seconds(120)):
                self._work_a_little(at)
            self._fall_behind()
        self.now = DEADLY

    def __getitem__(self, name: str) -> Schedule:
        return Schedule.objects.get(name=name)

    def _define(self) -> None:
        SharedCalendar.objects.define("days off", [], initiator=SOMEBODY, now=NOW)
        for policy in Schedule.Overlap.values:
            self.minutely(policy, overlap=policy)
        self.minutely("jittery", spec=EVERY_MINUTE | {"jitter": "30s"}, overlap="buffer_one")
        self.minutely("failing", overlap="buffer_all", pause_on_failure=True)
        self.minutely("slow", timeout_seconds=100)
        self.minutely("lost", overlap="allow_all")
        self.minutely("paused", paused=True)
        self.minutely("on work days", spec=EVERY_MINUTE | {"exclude": [{"calendar": "days off"}]})
        snoozing = self.minutely("snoozing", overlap="buffer_all")
        snoozing.pause(initiator=SOMEBODY, now=NOW + seconds(30), until=NOW + seconds(150))
        limited = self.minutely("limited", overlap="allow_all")
        limited.edit(token=1, initiator=SOMEBODY, now=NOW, changes={"remaining": 2})

    def minutely(self, name: str, **fields: Any) -> Schedule:
        return make_schedule(step(name), **{"name": name, "spec": EVERY_MINUTE} | fields)

    def _work_a_little(self, at: datetime) -> None:
        """All tasks are claimed, one by a worker that dies, and some end."""
        self.now = at
        tick(at)
        lost = make_worker(at)
        WorkerTask.objects.filter(name="lost").update(pool="lost")
        claim(lost, now=at, pools=["lost"])
        Worker.objects.filter(pk=lost.pk).bury(now=at)
        for task in claim(self.worker, now=at):
            if task.name == "failing":
                break_down(self.worker, task, now=at)
            elif task.name == "buffer_all":
                end(self.worker, task, now=at)

    def _fall_behind(self) -> None:
        self.minutely("far behind", spec={"every": ["10s"]}, overlap="buffer_all", catch_up_seconds=60)
        backfilled = self.minutely("backfilled", spec={"every": ["1h"]})
        since, now = NOW - timedelta(hours=2), NOW + seconds(150)
        Backfill.objects.ask(backfilled, start_at=since, end_at=NOW, initiator=SOMEBODY, now=now)

    def come_to_rest(self) -> None:
        """Another scheduler and other workers do all that is left to do."""
        for self.now in (DEADLY, AFTERWARDS):
            for _ in range(50):
                tick(self.now)
                self.end_tasks()
                if not is_due(self.now) and not WorkerTask.objects.exists():
                    break
        found = violations(now=AFTERWARDS, moment=timedelta(0))
        assert not found, found
        self.now = DEADLY

    def end_tasks(self, *names: str) -> None:
        """Of these names, or all that are ready or were claimed."""
        if not names:
            claim(self.worker, now=self.now)
        held = WorkerTask.objects.filter(worker=self.worker)
        held = held.filter(name__in=names) if names else held
        end(self.worker, *map(ClaimedTask.of, held), now=self.now)

    def outline(self) -> dict[str, list[Any]]:
        """All that matters, without the numbers of rows."""
        rows: dict[str, Any] = {
            "schedules": Schedule.objects.values_list(*SCHEDULE),
            "occurrences": Occurrence.objects.values_list(*OCCURRENCE),
            "executions": Execution.objects.values_list(*EXECUTION),
            "tasks": WorkerTask.objects.values_list("name", "status", "attempt", "worker"),
            "activities": Activity.objects.values_list("operation", "target_name", "status", "created_at"),
            "backfills": Backfill.objects.values_list("status", "added_count", "passed_count", "slice_at"),
            "calendars": SharedCalendar.objects.values_list("excluded", "token"),
        }
        return {name: sorted(map(str, found)) for name, found in rows.items()}


SCHEDULE = [field.attname for field in Schedule._meta.concrete_fields if field.name != "id"]
OCCURRENCE = ("schedule__name", "key", "status", "reason", "due_at", "kept_at", "settled_at")
EXECUTION = ("schedule_name", "occurrence__key", "status", "finished_at", "accounted_at", "is_timed_out")


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A tick survives whatever goes wrong in a part of it, and says so."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, settings: Any) -> World:
    settings.JIM_BUFFER_LIMIT, settings.JIM_BACKFILL_SLICE = 4, 1
    monkeypatch.setattr(timetable, "TIMES_PER_PASS", 10)
    return World(monkeypatch)


SEVERAL_TRANSACTIONS: dict[str, Callable[[World], object]] = {
    "a tick": lambda world: tick(DEADLY),
    "an end": lambda world: world.end_tasks("skip", "buffer_one", "cancel_other"),
    "a run that ends another": lambda world: trigger(world["terminate_other"], **BY, key="k"),
    "pause all": lambda world: Schedule.objects.filter(name__contains="buffer").pause_all(**BY),
}


def test_whatever_is_committed_when_it_dies_can_be_gone_on_with(world: World) -> None:
    with kept_state() as restore:
        world.come_to_rest()
        restore()
        for name, call in SEVERAL_TRANSACTIONS.items():
            assert die_everywhere(world, call, restore) > 0, name


def die_everywhere(world: World, call: Callable[[World], object], restore: Callable[[], None]) -> int:
    """Returns how many different states a death can leave behind, apart from none and all of it."""
    known = {0: world.outline()}
    for place in count(1):
        death = kill_at(place, partial(call, world))
        outline = world.outline()
        if death.commits not in known:
            known[death.commits] = outline
            world.come_to_rest()
        assert outline == known[death.commits]
        if death.commits:
            restore()
        if not death.was_killed:
            return len(known) - 2
    raise AssertionError


FILE = b"""
version: 1
calendars:
- {name: days off, excluded: [{dates: 2026-12-25}]}
schedules:
- name: skip
  spec: {every: [2m]}
  steps: [{name: new, step_type: python, config: {function: tests.work.noop}}]
- name: imported
  spec: {every: [1m]}
  steps: [{name: new, step_type: python, config: {function: tests.work.noop}}]
"""


def import_file(world: World) -> None:
    library = Library()
    library.add("all.yaml", FILE)
    assert reconcile(library, author=Author(), now=DEADLY).problems == []


CHANGES: dict[str, Callable[[World], object]] = {
    "pause": lambda world: world["buffer_all"].pause(**BY),
    "pause for a while": lambda world: world["allow_all"].pause(**BY, until=DEADLY + seconds(60)),
    "resume": lambda world: world["paused"].resume(**BY),
    "resume and discard": lambda world: world["snoozing"].resume(**BY, discard=True),
    "edit the times": lambda world: world["far behind"].edit(
        **BY, token=1, changes={"spec": {"every": ["7s"]}}
    ),
    "edit the policy and the steps": lambda world: world["buffer_one"].edit(
        **BY, token=1, changes={"overlap": "allow_all"}, steps=[step("other"), step("more", 1)]
    ),
    "edit a calendar": lambda world: SharedCalendar.objects.get().edit(
        **BY, token=1, changes={"excluded": [{"day_of_week": "mon"}]}
    ),
    "import a file": import_file,
    "skip the next": lambda world: world["limited"].skip_next(**BY),
    "take that back": lambda world: world["limited"].unskip(NOW + seconds(240), **BY),
    "skip what waits for its jitter": lambda world: world["jittery"].skip_next(**BY),
    "run": lambda world: trigger(world["cancel_other"], **BY, key="k", at=NOW),
    "backfill": lambda world: Backfill.objects.ask(
        world["slow"], start_at=NOW, end_at=DEADLY, which="missing", **BY
    ),
    "a slice of a backfill": lambda world: Backfill.objects.get(schedule__name="backfilled").generate(DEADLY),
    "cancel a backfill": lambda world: Backfill.objects.get(schedule__name="slow").cancel(**BY),
    "close": lambda world: world["backfilled"].close(**BY),
    "define": lambda world: world.minutely("new", now=DEADLY, run_at_once=True),
}


def test_a_change_is_made_as_a_whole_or_not_at_all(world: World) -> None:
    for name, change in CHANGES.items():
        before = world.outline()
        assert kill_at(1, partial(change, world)) == (True, 0), name
        assert world.outline() == before, name
        assert kill_at(2, partial(change, world)) == (False, 1), name
        assert world.outline() != before, name
    trigger(world["cancel_other"], **BY, key="k", at=NOW)  # whoever asked and got no answer asks again
    assert Occurrence.objects.filter(key="manual/k").count() == 1
    world.come_to_rest()
