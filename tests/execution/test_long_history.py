"""However often a schedule has run: what its next run costs does not depend on those before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from django.db import connection, transaction

from execution.invoker import Overlapping, invoke_soon, trigger
from execution.models import Worker
from execution.models.attempt import Held
from execution.scheduler import tick
from schedules.models import Schedule
from tests.base import NOW, SOMEBODY, break_down, claim, end, fresh, make_schedule, make_worker, seconds, step
from tests.counting import steps_of_sqlite

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite counts its steps"),
]
FEW, MANY = 10, 150
Prepared = Callable[[Schedule, Worker, datetime], Callable[[], object]]


def triggering(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    return lambda: run(schedule, now)


def firing(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    return lambda: tick(now)


def completing(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    run(schedule, now)
    return lambda: end(worker, *claimed(worker, now), now=now)


def failing(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    run(schedule, now)
    return lambda: break_down(worker, *claimed(worker, now), now=now)


def accounting(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    run(schedule, now)
    end(worker, *claimed(worker, now), now=now)
    return lambda: invoke_soon([schedule.pk], now=now)


def being_refused(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    run(schedule, now)

    def refused() -> None:
        with pytest.raises(Overlapping):
            run(schedule, now)

    return refused


def pausing(schedule: Schedule, worker: Worker, now: datetime) -> Callable[[], object]:
    return lambda: fresh(schedule).pause(initiator=SOMEBODY, now=now)


def run(schedule: Schedule, now: datetime) -> None:
    trigger(schedule, initiator=SOMEBODY, now=now)


def claimed(worker: Worker, now: datetime) -> list[Held]:
    return claim(worker, now=now)


PREPARED: list[Prepared] = [triggering, firing, completing, failing, accounting, being_refused, pausing]


def test_a_longer_history_takes_no_more_steps() -> None:
    worker, taken = make_worker(), dict[str, list[int]]()
    schedule = make_schedule(step("a"), step("b", 1), spec={"cron": ["0 * * * *"]})
    for numbers in (range(FEW), range(FEW, MANY)):
        for number in numbers:
            at = NOW + seconds(number)
            run(schedule, at)
            while tasks := claimed(worker, at):
                end(worker, *tasks, now=at)
            invoke_soon([schedule.pk], now=at)
        for prepared in PREPARED:
            with transaction.atomic():
                act = prepared(schedule, worker, NOW + seconds(7200))
                with steps_of_sqlite() as steps:
                    act()
                taken.setdefault(prepared.__name__, []).append(len(steps))
                transaction.set_rollback(True)
    assert {name: costs for name, costs in taken.items() if costs[1] >= costs[0] * 1.5 + 5} == {}
