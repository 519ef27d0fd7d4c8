"""Rates hold for all web processes together. Each `Meter` stands for one process."""

from __future__ import annotations

from typing import Any

import pytest

from api.models import Usage
from api.rates import KEPT_MINUTES, Meter, minute_of
from tests.base import NOW, seconds

pytestmark = pytest.mark.django_db


def test_processes_count_together() -> None:
    here, there = Meter(), Meter()
    counted = [meter.add("ada", 1, most=4, now=NOW) for meter in (here, there, here, there)]
    assert counted == [1, 2, 3, 4]
    assert here.add("bob", 1, most=4, now=NOW) == 1
    assert here.add("ada", 1, most=4, now=NOW + seconds(60)) == 1, "a new minute"


def test_a_process_lets_through_no_more_than_a_share_that_it_has_not_told() -> None:
    here, there = Meter(), Meter()
    for _ in range(100):
        here.add("ada", 1, most=100, now=NOW)
    counted = [there.add("ada", 1, most=100, now=NOW) for _ in range(5)]
    assert counted == [1, 2, 3, 4, 105]


def test_what_is_far_below_or_above_a_rate_costs_no_statement(django_assert_num_queries: Any) -> None:
    meter = Meter()
    with django_assert_num_queries(0):
        for _ in range(4):
            meter.add("ada", 1, most=100, now=NOW)
    meter.add("ada", 1_000, most=100, now=NOW)
    with django_assert_num_queries(0):
        assert meter.add("ada", 1_000, most=100, now=NOW) == 2_004
        assert meter.used("ada", NOW) == 2_004


def test_what_is_known_never_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads add at once, and the one that came first hears its answer last."""
    meter = Meter()

    def late(subject: str, minute: int, amount: int) -> int:
        monkeypatch.undo()
        meter.add(subject, 10, most=20, now=NOW)
        return amount

    monkeypatch.setattr(Usage.objects, "add", late)
    assert meter.add("ada", 1, most=20, now=NOW) == 11


def test_old_minutes_are_pruned() -> None:
    for minutes in (0, KEPT_MINUTES, KEPT_MINUTES + 1):
        Usage.objects.add("ada", minute_of(NOW) - minutes, 1)
    assert Usage.objects.prune_old(NOW) == 1
