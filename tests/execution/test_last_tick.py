"""What health, metrics and the pages' banner know about the schedulers."""

from __future__ import annotations

from typing import Any

import pytest

from execution import recovery
from execution.models import Chore
from execution.models.chore import is_ticking
from execution.scheduler import SchedulerLoop
from tests.base import NOW, seconds

pytestmark = pytest.mark.django_db


def test_before_the_first_tick_no_scheduler_is_at_work() -> None:
    assert Chore.objects.last_tick() is None
    assert not is_ticking(None, now=NOW)


@pytest.mark.parametrize(("age", "expected"), [(0, True), (30, True), (119, True), (120, False)])
def test_a_scheduler_that_ticked_within_two_minutes_is_at_work(age: int, expected: bool) -> None:
    recovery.bury_expired(NOW)
    assert is_ticking(Chore.objects.last_tick(), now=NOW + seconds(age)) == expected


def test_a_long_lease_makes_ticks_rarer(settings: Any) -> None:
    settings.JIM_LEASE_SECONDS = 600
    recovery.bury_expired(NOW)
    assert is_ticking(Chore.objects.last_tick(), now=NOW + seconds(599))


def test_the_loop_notes_when_it_ticked_and_how_long_that_took() -> None:
    SchedulerLoop()._tick()
    tick = Chore.objects.last_tick()
    assert tick is not None
    assert tick.last_run_at is not None
    assert (tick.took_seconds or 0) > 0
