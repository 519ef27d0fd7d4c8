"""A worker that is frozen past its lease and thawed again changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities import clock
from activities.models import Activity
from execution.models import Execution, Worker
from tests.base import start, step, step_statuses
from tests.fleet import Fleet, descendants, is_at_rest, living, tell
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
    talking = {"ledger": str(ledger), "seconds": 5}
    with make_fleet(JIM_LEASE_SECONDS="2") as fleet:
        fleet.scheduler()
        member = fleet.worker("--threads", "4", "--processes", "2")
        before = member.worker
        execution = start(
            step("in a thread", 0, "note_and_talk", kwargs=talking),
            step("in a child", 0, "note_and_talk", kwargs=talking, isolation="process"),
            family("a program"),
            now=clock.now(),
        )
        wait_until(lambda: all(attempt.output.exists() for attempt in attempts(execution, 1)))
        member.freeze_empty_handed()
        children = descendants(member.pid)
        assert len(living(children)) >= 4

        wait_until(lambda: step_statuses(execution) == dict.fromkeys(NAMES, RECOVERED))
        recovered = [everything_about(attempt) for attempt in attempts(execution, 1)]
        member.thaw()
        wait_until(is_at_rest, seconds=30)

        assert [everything_about(attempt) for attempt in attempts(execution, 1)] == recovered
        assert living(children) == []
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
