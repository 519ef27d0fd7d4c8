"""Two schedulers and three workers, all at once, on one database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from database import clock
from execution.models import Execution, Worker
from schedules.models import Schedule
from tests.base import make_schedule, step
from tests.fleet import Fleet, come_to_rest, tell
from tests.invariants import Numbers, violations
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_many_schedulers_and_workers_run_everything_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger"
    now = clock.now()
    for _ in range(40):
        make_schedule(
            *parallel_steps(ledger),
            now=now - timedelta(hours=5),
            spec={"every": ["1h"]},
            overlap="allow_all",
            catch_up_seconds=None,
        )
    for _ in range(3):
        make_schedule(*parallel_steps(ledger, seconds=0.1), now=now, spec={"every": ["1s"]})
    with Fleet(tmp_path) as fleet:
        for _ in range(2):
            fleet.start_scheduler()
            fleet.start_worker("--threads", "8", "--processes", "1")
        wait_until(lambda: finished() >= 20)
        # One more in the middle of it: what others are working on is none of its business.
        fleet.worker("--threads", "8", "--processes", "1")
        wait_until(lambda: Schedule.objects.filter(overlap="allow_all", started_count__gte=5).count() == 40)
        come_to_rest()
        fleet.stop()
    numbers = Numbers.load()
    tell(f"races: {numbers}", capsys)
    assert violations(ledger) == []
    assert set(numbers.executions) == {"completed"}
    assert numbers.reruns == {}
    assert numbers.stale_refused == 0
    assert finished() >= 200
    assert set(Worker.objects.values_list("status", flat=True)) == {"gone"}


def finished() -> int:
    return Execution.objects.exclude(finished_at=None).count()


def parallel_steps(ledger: Path, seconds: float = 0) -> list[dict[str, object]]:
    """Three groups: three steps, two steps, one step; one of them in a child process."""
    kwargs = {"ledger": str(ledger), "seconds": seconds}
    places = [("a", 0), ("b", 0), ("c", 0), ("d", 1), ("e", 1), ("f", 2)]
    return [
        step(name, index, "note", kwargs=kwargs, isolation="process" if name == "e" else "thread")
        for name, index in places
    ]
