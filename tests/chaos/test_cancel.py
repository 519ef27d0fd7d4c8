"""Cancelling works at every stage of a task, and ends all its processes; so does terminating."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from execution.models import Execution, WorkerTask
from tests.base import SOMEBODY, start, step, step_statuses
from tests.fleet import Fleet, descendants, is_at_rest, living
from tests.invariants import read_ledger, violations
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Iterator[Fleet]:
    with make_fleet() as fleet:
        yield fleet


def test_waiting_queued_backing_off_and_processing_tasks_end(
    tmp_path: Path, fleet: Fleet, ledger: Path, family: Callable[..., dict[str, Any]]
) -> None:
    long = {"ledger": str(ledger), "seconds": 3_600}
    failing = {"ledger": str(ledger)}
    member = fleet.worker("--threads", "8", "--processes", "2", "--pools", "default")
    execution = start(
        step("queued", 0, "note", kwargs=long, pool="nobody serves this"),
        step("backing off", 0, "note_and_fail", kwargs=failing, max_retries=3, retry_seconds=3_600),
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

    assert execution.cancel(initiator=SOMEBODY, now=clock.now())
    unstarted = Activity.objects.filter(
        parent=execution.activity_id, message="Cancelled before the step started."
    )
    assert sorted(unstarted.values_list("target_name", flat=True)) == ["backing off", "queued", "waiting"]
    wait_until(lambda: not living(children) and has_ended(execution))
    wait_until(is_at_rest)
    terminated = start(family("another stubborn program", kind="stubborn"), now=clock.now())
    wait_until(lambda: len(pids(tmp_path)) == 6)
    assert terminated.terminate(initiator=SOMEBODY, now=clock.now())
    assert has_ended(terminated)
    wait_until(lambda: not living(pids(tmp_path)))
    wait_until(is_at_rest)
    fleet.stop()
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


def has_ended(execution: Execution) -> bool:
    return Execution.objects.filter(pk=execution.pk, status="cancelled").exists()


def pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []
