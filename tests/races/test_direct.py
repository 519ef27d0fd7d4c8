"""Many direct requests and two workers on a pool of one seat: never two at once, and nobody starves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from activities.models import Activity
from database import clock
from execution import direct
from execution.models import Limit, Reservation, WorkerTask
from tests.base import SOMEBODY, enqueue, step
from tests.invariants import read_ledger, violations
from tests.loops import running_worker
from tests.races.meeting import at_once
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CLIENTS, REQUESTS, JOBS = 4, 3, 10


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def test_one_seat_is_never_taken_twice(ledger: Path) -> None:
    Limit.objects.create(key="pool:default", size=1)
    noted = {"ledger": str(ledger), "seconds": 0.01}
    enqueue(*(step("job", 0, "note", kwargs=noted) for _ in range(JOBS)), now=clock.now())

    def ask_often() -> int:
        """Whoever is told to come back comes back, and then has twice the time."""
        done, patience = 0, 0.25
        while done < REQUESTS:
            try:
                work = step("direct", 0, "note", kwargs=noted)
                direct.run(work, initiator=SOMEBODY, timeout_seconds=patience)
                done += 1
            except (direct.Busy, direct.TimedOut):
                patience *= 2
        return done

    with running_worker(threads=2), running_worker(threads=2):
        assert at_once(*[ask_often] * CLIENTS) == [REQUESTS] * CLIENTS
        wait_until(lambda: not WorkerTask.objects.exists())
    marks = read_ledger(ledger)
    assert [mark.event for mark in marks] == ["start", "end"] * (JOBS + CLIENTS * REQUESTS)
    assert all(begun.key == ended.key for begun, ended in zip(marks[::2], marks[1::2], strict=True))
    statuses = Counter(Activity.objects.values_list("target_name", "status"))
    assert statuses == {("job", "complete"): JOBS, ("direct", "complete"): CLIENTS * REQUESTS}
    assert not Reservation.objects.live().exists()
    assert violations(ledger) == []
