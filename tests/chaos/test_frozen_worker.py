"""A worker that is frozen past its lease and thawed again changes nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from activities.models import Activity
from database import clock
from execution.models import Execution, Worker, WorkerTask
from tests.base import enqueue, start, step, step_statuses
from tests.fleet import Fleet, descendants, is_at_rest, living, state, tell
from tests.invariants import Numbers, violations
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_a_thawed_worker_still_says_is_refused(
    tmp_path: Path,
    ledger: Path,
    family: Callable[..., dict[str, Any]],
    make_fleet: Callable[..., Fleet],
    capsys: pytest.CaptureFixture[str],
) -> None:
    go = tmp_path / "go"
    talking = {"ledger": str(ledger), "path": str(go)}
    with make_fleet(JIM_GRACE_SECONDS="3600") as fleet:
        member = fleet.worker("--threads", "4", "--processes", "2")
        before = member.worker
        execution = start(
            step("in a thread", 0, "note_and_talk_until", kwargs=talking),
            step("in a child", 0, "note_and_talk_until", kwargs=talking, isolation="process"),
            family("a program"),
            now=clock.now(),
        )
        wait_until(lambda: all(attempt.output.exists() for attempt in attempts(execution, 1)))
        member.freeze_empty_handed()
        children = descendants(member.pid)
        assert len(living(children)) >= 4

        fleet.bury_expired(member)
        wait_until(lambda: step_statuses(execution) == dict.fromkeys(NAMES, RECOVERED))
        recovered = [everything_about(attempt) for attempt in attempts(execution, 1)]
        member.thaw()
        wait_until(lambda: member.worker.pk != before.pk)
        go.touch()
        wait_until(is_at_rest)

        assert [everything_about(attempt) for attempt in attempts(execution, 1)] == recovered
        wait_until(lambda: not living(children))
        assert step_statuses(execution) == {name: ["failed_with_error", "complete"] for name in NAMES}
        after = member.worker
        assert (after.pk != before.pk, after.status, after.pid) == (True, "alive", before.pid)
        assert set(attempts(execution, 2).values_list("worker_id", flat=True)) == {after.pk}
        fleet.stop()
    numbers = Numbers.load()
    tell(f"frozen worker: {numbers}", capsys)
    assert Worker.objects.get(pk=before.pk).stale_refused == numbers.stale_refused == 3
    assert violations(ledger) == []


NAMES = ("in a thread", "in a child", "a program")
RECOVERED = ["failed_with_error", "pending"]


def attempts(execution: Execution, number: int) -> Any:
    return Activity.objects.filter(parent=execution.activity_id, attempt=number).order_by("line")


def everything_about(activity: Activity) -> tuple[Any, ...]:
    """The whole row, and all that was said."""
    (row,) = Activity.objects.filter(pk=activity.pk).values()
    return row, list(activity.output.values()), list(activity.items.values())


@pytest.mark.long
def test_what_had_not_started_does_not_start_after_the_lease(
    tmp_path: Path, ledger: Path, make_fleet: Callable[..., Fleet]
) -> None:
    """A worker claims quick tasks ahead of its seat. Others have done them by the time it is thawed."""
    go = tmp_path / "go"
    with make_fleet(JIM_LEASE_SECONDS="5", DJANGO_SETTINGS_MODULE="tests.chaos.ahead") as fleet:
        frozen = fleet.worker("--threads", "1")
        quick = step("quick", 0, "note", kwargs={"ledger": str(ledger)})
        enqueue(quick, now=clock.now())
        wait_until(is_at_rest)
        long = step("long", 0, "note_until", kwargs={"ledger": str(ledger), "path": str(go)})
        enqueue(long, *[quick] * 4, now=clock.now())
        wait_until(lambda: len(starts(ledger)) == 2)
        frozen.freeze_empty_handed()
        held = WorkerTask.objects.processing().filter(worker=frozen.worker.pk)
        unstarted = set(held.values_list("key", flat=True)) - {key for key, *_ in starts(ledger)}
        assert len(unstarted) == 4
        # Seen from the frozen process as well, which does not read its row.
        wait_until(lambda: Worker.objects.expired(clock.now()).exists())
        fleet.bury_expired(frozen)
        go.touch()
        fleet.worker("--threads", "1")
        wait_until(is_at_rest)

        thawed_at = time.time()
        frozen.thaw()
        wait_until(lambda: Worker.objects.alive().filter(pid=frozen.pid).exists())
        fleet.stop()
    started = starts(ledger)
    assert [key for key, _, at in started if at > thawed_at] == []
    assert {key for key, attempt, _ in started if attempt == 2} >= unstarted
    assert violations(ledger) == []


@pytest.mark.long
def test_what_its_processes_had_not_started_does_not_start_after_the_lease(
    ledger: Path, family: Callable[..., dict[str, Any]], make_fleet: Callable[..., Fleet]
) -> None:
    """All processes of a worker are frozen when it has handed them steps, and thawed when others did them."""
    quick = step("in a child", 0, "note", kwargs={"ledger": str(ledger)}, isolation="process")
    program = family("a program", kind="quick")
    with make_fleet(JIM_LEASE_SECONDS="5") as fleet:
        frozen = fleet.worker("--threads", "1", "--processes", "1")
        enqueue(quick, program, now=clock.now())
        wait_until(is_at_rest)
        children = descendants(frozen.pid)
        send(children, signal.SIGSTOP)
        wait_until(lambda: {state(pid) for pid in children} == {"T"})
        enqueue(quick, program, now=clock.now())
        wait_until(lambda: WorkerTask.objects.processing().count() == 2)
        frozen.freeze_empty_handed()
        wait_until(lambda: Worker.objects.expired(clock.now()).exists())
        fleet.bury_expired(frozen)
        fleet.worker("--threads", "1", "--processes", "1")
        wait_until(is_at_rest)

        thawed_at = time.time()
        send(children, signal.SIGCONT)
        # Asleep again: they have seen all that was sent to them.
        wait_until(lambda: {state(pid) for pid in living(children)} <= {"S"})
        frozen.thaw()
        wait_until(lambda: Worker.objects.alive().filter(pid=frozen.pid).exists())
        wait_until(lambda: not living(children))
        fleet.stop()
    assert [key for key, _, at in starts(ledger) if at > thawed_at] == []
    assert violations(ledger) == []


def send(pids: list[int], signum: int) -> None:
    for pid in pids:
        os.kill(pid, signum)


def starts(ledger: Path) -> list[tuple[UUID, int, float]]:
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    found = [line.split() for line in lines if line.startswith("start ")]
    return [(UUID(key), int(attempt), float(at)) for _, key, attempt, _, at in found]
