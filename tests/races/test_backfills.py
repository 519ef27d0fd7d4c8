"""Backfills while others work on the same schedule: each time once, none lost, nobody left waiting."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from database import clock
from execution.loops.invoker import invoke
from execution.loops.scheduler import tick
from schedules.generator import backfill
from schedules.models import Backfill, Refused, Schedule
from schedules.models import backfill as backfill_module
from tests.base import NOW, SOMEBODY, fresh, make_schedule, seconds
from tests.races.meeting import Meeting

pytestmark = pytest.mark.django_db(transaction=True)
EVERY_MINUTE = {"cron": ["* * * * *"]}


@pytest.fixture(autouse=True)
def clock_at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


@pytest.fixture(autouse=True)
def small_slices(settings: Any) -> None:
    settings.JIM_BACKFILL_SLICE, settings.JIM_BUFFER_LIMIT = 5, 20


def ask(schedule: Schedule, times: int, **fields: Any) -> Backfill:
    """For the last so many minutes."""
    start_at, end_at = NOW - seconds(60 * times), NOW - seconds(60)
    return Backfill.objects.ask(
        schedule, start_at=start_at, end_at=end_at, initiator=SOMEBODY, now=NOW, **fields
    )


def of(schedule: Schedule) -> Any:
    return Schedule.objects.filter(pk=schedule.pk)


def test_slice_and_slice(meet: Meeting) -> None:
    """Two schedulers find the same backfill: whoever gets its schedule makes the slice."""
    schedule = make_schedule(spec=EVERY_MINUTE)
    for _ in meet.rounds:
        asked = ask(schedule, 12)
        meet(partial(backfill, NOW), partial(backfill, NOW), behind=of(schedule))
        assert asked.occurrences.count() in (0, 5, 10)
        for _ in range(2):
            backfill(NOW)
        assert asked.occurrences.count() == fresh(asked).passed_count == 10
        asked.occurrences.settle("skipped", reason="overlap", now=NOW)
        Backfill.objects.make_room([schedule.pk], now=NOW)
        backfill(NOW)
        nominal = asked.occurrences.order_by("nominal_at").values_list("nominal_at", flat=True)
        assert list(nominal) == [NOW - seconds(60 * number) for number in range(12, 0, -1)]
        assert (fresh(asked).status, fresh(asked).added_count) == ("done", 12)
        asked.cancel(initiator=SOMEBODY, now=NOW)


def test_a_form_that_is_sent_twice(meet: Meeting) -> None:
    """Both are answered with the same backfill."""
    schedule = make_schedule(spec=EVERY_MINUTE)
    for number, _ in enumerate(meet.rounds, 1):
        sent = partial(ask, schedule, 12, which="missing", key=f"form {number}")
        first, second = meet(sent, sent, behind=of(schedule))
        assert first == second == schedule.backfills.latest("pk")
        assert schedule.backfills.count() == number


def test_slice_and_close(meet: Meeting) -> None:
    """A slice comes before the end and is cancelled with the rest, or it does not come."""
    for _ in meet.rounds:
        schedule = make_schedule(spec=EVERY_MINUTE)
        asked = ask(schedule, 12)
        meet(
            partial(asked.generate, NOW),
            partial(schedule.close, initiator=SOMEBODY, now=NOW),
            behind=of(schedule),
        )
        assert (fresh(asked).status, fresh(asked).slice_at) == ("cancelled", None)
        assert not asked.occurrences.pending().exists()
        assert asked.occurrences.count() == fresh(asked).added_count in (0, 5)


def test_slice_and_settle(meet: Meeting) -> None:
    """Room that comes while a slice finds none is not overlooked: no backfill waits for ever."""
    for _ in meet.rounds:
        schedule = make_schedule(spec=EVERY_MINUTE)
        asked = ask(schedule, 12, overlap="skip")
        for _ in range(2):
            backfill(NOW)
        assert fresh(asked).slice_at is None
        meet(partial(backfill, NOW), partial(invoke, NOW), behind=of(schedule))
        for _ in range(2):
            tick(NOW)
        assert (fresh(asked).status, asked.occurrences.exclude(status="pending").count()) == ("done", 12)


def test_ask_and_ask(meet: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one more is allowed, one of two gets it."""
    monkeypatch.setattr(backfill_module, "MOST_OPEN", 1)
    for _ in meet.rounds:
        schedule = make_schedule(spec=EVERY_MINUTE)
        answers = meet(partial(ask, schedule, 3), partial(ask, schedule, 3), behind=of(schedule))
        assert sorted(type(answer).__name__ for answer in answers) == ["Backfill", Refused.__name__]
        assert schedule.backfills.open().count() == 1
