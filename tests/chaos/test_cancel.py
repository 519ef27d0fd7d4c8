"""Cancelling works at every stage of a task, within two seconds and with all its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities import clock
from activities.models import Activity
from execution.models import Execution, WorkerTask
from tests.base import SOMEBODY, make_schedule, start, step, step_statuses
from tests.fleet import Fleet, descendants, is_at_rest, living, tell
from tests.invariants import Mark, Numbers, read_ledger, violations
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

SOON = 2.0


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    with make_fleet() as fleet:
        yield fleet


def test_waiting_queued_backing_off_and_processing_tasks_end_within_two_seconds(
    tmp_path: Path,
    fleet: Fleet,
    ledger: Path,
    family: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = {"ledger": str(ledger), "seconds": 60}
    member = fleet.worker("--threads", "8", "--processes", "2", "--pools", "default")
    execution = start(
        step("queued", 0, "note", kwargs=long, pool="nobody serves this"),
        step(
            "backing off", 0, "note_and_fail", kwargs={"ledger": str(ledger)}, max_retries=3, retry_seconds=60
        ),
        step("in a thread", 0, "note", kwargs=long),
        step("in a child", 0, "note", kwargs=long | {"deaf": True}, isolation="process"),
        family("a program"),
        family("a stubborn program", kind="stubborn"),
        step("waiting", 1, "note", kwargs=long),
        now=clock.now(),
    )
    wait_until(lambda: len(pids(tmp_path)) == 4 and len(read_ledger(ledger)) == 6)
    wait_until(lambda: WorkerTask.objects.filter(name="backing off", attempt=2).queued().exists())
    children = pids(tmp_path) + [
        mark.pid for mark in read_ledger(ledger) if mark.pid in descendants(member.pid)
    ]
    assert len(living(children)) == len(children) == 7

    asked = time.monotonic()
    assert execution.cancel(initiator=SOMEBODY, now=clock.now())
    took = time.monotonic() - asked
    unstarted = Activity.objects.filter(parent=execution.activity_id, message="Cancelled before it started.")
    assert sorted(unstarted.values_list("target_name", flat=True)) == ["backing off", "queued", "waiting"]
    wait_until(lambda: not living(children) and has_ended(execution), seconds=SOON)
    ended = time.monotonic() - asked

    wait_until(is_at_rest)
    fleet.stop()
    tell(f"cancel: asked in {took:.2f} s, ended with all its processes in {ended:.2f} s", capsys)
    assert step_statuses(execution) == {
        "queued": ["cancelled"],
        "backing off": ["failed_with_error", "cancelled"],
        "in a thread": ["cancelled"],
        "in a child": ["cancelled"],
        "a program": ["cancelled"],
        "a stubborn program": ["cancelled"],
        "waiting": ["cancelled"],
    }
    assert violations(ledger) == []


def test_terminate_ends_the_processes_too(
    tmp_path: Path, fleet: Fleet, family: Callable[..., dict[str, Any]]
) -> None:
    fleet.worker()
    execution = start(family("a stubborn program", kind="stubborn"), now=clock.now())
    wait_until(lambda: len(pids(tmp_path)) == 2)
    assert execution.terminate(initiator=SOMEBODY, now=clock.now())
    assert has_ended(execution)
    wait_until(lambda: not living(pids(tmp_path)), seconds=SOON)
    wait_until(is_at_rest)
    fleet.stop()
    assert violations() == []


def test_a_schedule_never_overlaps_around_its_cancellations(
    tmp_path: Path, fleet: Fleet, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its steps take their time to stop, and the next execution is due every second."""
    slow = {"ledger": str(ledger), "seconds": 30, "farewell": 0.3}
    for _ in range(2):
        fleet.start_scheduler()
    for _ in range(2):
        fleet.start_worker("--threads", "4", "--processes", "2")
    schedule = make_schedule(
        step("in a thread", 0, "note", kwargs=slow),
        step("in a child", 0, "note", kwargs=slow, isolation="process"),
        spec={"every": ["1s"]},
        now=clock.now(),
    )
    for number in range(1, 7):
        wait_for_starts(ledger, 2 * number)
        (running,) = schedule.executions.in_progress()
        assert running.cancel(initiator=SOMEBODY, now=clock.now())
    schedule.refresh_from_db()
    schedule.pause(initiator=SOMEBODY, now=clock.now())
    for running in schedule.executions.in_progress():
        running.cancel(initiator=SOMEBODY, now=clock.now())
    wait_until(lambda: not schedule.executions.in_progress().exists())
    wait_until(lambda: not Execution.objects.unaccounted().exists())
    fleet.stop()
    tell(f"cancelled again and again: {Numbers.load()}", capsys)
    assert violations(ledger) == []
    assert len(marks(ledger, "stopped")) >= 12


def wait_for_starts(ledger: Path, count: int) -> None:
    wait_until(lambda: len(marks(ledger, "start")) == count)


def marks(ledger: Path, event: str) -> list[Mark]:
    return [mark for mark in read_ledger(ledger) if mark.event == event]


def has_ended(execution: Execution) -> bool:
    return Execution.objects.filter(pk=execution.pk, status="cancelled").exists()


def pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
