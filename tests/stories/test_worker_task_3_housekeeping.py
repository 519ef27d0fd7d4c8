"""Housekeeping in idle time: at most once a minute; the history at most once in six hours."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from execution.loops import housekeeping, worker
from execution.loops.housekeeping import keep_house
from execution.loops.invoker import invoke
from execution.models import Execution
from tests.base import NOW, run_until_idle, start, step
from tests.loops import running_worker
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class TestEvery60Seconds:
    @pytest.fixture
    def turns(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """When the chores had their turn; a minute is a tenth of a second here."""
        monkeypatch.setattr(worker, "HOUSEKEEPING_SECONDS", 0.1)
        monkeypatch.setattr(worker, "STARVED_SECONDS", 0.3)
        told: list[float] = []

        def once(now: datetime) -> int:
            told.append(time.monotonic())
            return 0

        monkeypatch.setattr(housekeeping, "duties", [housekeeping.Duty("count", timedelta(0), once)])
        return told

    @pytest.mark.live
    def test_an_idle_worker_keeps_house_again_and_again(self, turns: list[float], settings: Any) -> None:
        settings.JIM_POLL_SECONDS = 0.05
        with running_worker():
            wait_until(lambda: len(turns) >= 3)
        assert all(later - earlier >= 0.1 for earlier, later in pairwise(turns))

    @pytest.mark.live
    def test_a_busy_worker_is_not_starved_of_it_for_ever(self, turns: list[float], settings: Any) -> None:
        settings.JIM_GRACE_SECONDS = 0
        start(step("long", 0, "wait_for_ever"), now=clock.now())
        with running_worker():
            wait_until(Activity.objects.filter(target_name="long", message="waiting").exists)
            turns.clear()
            wait_until(lambda: len(turns) >= 3)
            busy = turns.copy()
        assert all(later - earlier >= 0.3 for earlier, later in pairwise(busy))

    @pytest.mark.parametrize(("is_idle", "minutes"), [(True, 1), (False, 10)])
    def test_an_idle_worker_waits_for_a_minute_and_a_busy_one_for_ten(
        self, is_idle: bool, minutes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loop, kept = worker.WorkerLoop(processes=1, threads=1), list[datetime]()
        monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: 0.0))
        monkeypatch.setattr(worker, "keep_house", kept.append)
        for waited in (60 * minutes, 60 * minutes + 1):
            loop.last_housekeeping = -waited
            loop._keep_house(is_idle=is_idle)
        assert kept == [NOW]


def test_less_than_6_hours_after_the_last_cleanup_it_is_skipped() -> None:
    """Once for all workers, and what it cleans up: in the tests of housekeeping."""
    start(step("a", 0, "talk"), now=NOW)
    run_until_idle(now=NOW)
    invoke(NOW)
    late = NOW + timedelta(days=89, hours=20)
    keep_house(late)
    keep_house(late + timedelta(hours=5))
    assert Execution.objects.count() == 1
    keep_house(late + timedelta(hours=6))
    assert not Execution.objects.exists()
