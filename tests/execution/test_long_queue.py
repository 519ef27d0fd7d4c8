"""However long the queue is: what one task costs does not depend on those that wait beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from execution.models import Execution, Worker
from execution.models.attempt import Held
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    end_and_claim,
    enqueue,
    fresh,
    make_worker,
    start,
    step,
)
from tests.counting import steps_of_sqlite

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite counts its steps"),
]
FEW, MANY = 20, 400
Prepared = Callable[[Worker], Callable[[], object]]


def finishing(worker: Worker) -> Callable[[], object]:
    enqueue(step("job", priority=9))
    return lambda: end(worker, *claimed(worker))


def advancing(worker: Worker) -> Callable[[], object]:
    start(step("a", priority=9), step("b", 1, priority=9))
    return lambda: end_and_claim(worker, *claimed(worker), limit=1)


def completing(worker: Worker) -> Callable[[], object]:
    start(step("a", priority=9))
    return lambda: end(worker, *claimed(worker))


def stopping(worker: Worker) -> Callable[[], object]:
    """What comes after the failure is closed, each with its reason."""
    start(step("a", priority=9), step("b", 1), step("c", 2, run_if="always"))
    return lambda: break_down(worker, *claimed(worker))


def retrying(worker: Worker) -> Callable[[], object]:
    start(step("a", priority=9, max_retries=2))
    return lambda: break_down(worker, *claimed(worker))


def cancelling(worker: Worker) -> Callable[[], object]:
    execution = start(step("a"), step("b", 1))
    return lambda: fresh(execution).cancel(initiator=SOMEBODY, now=NOW)


def terminating(worker: Worker) -> Callable[[], object]:
    execution = start(step("a"), step("b", 1))
    return lambda: fresh(execution).terminate(initiator=SOMEBODY, now=NOW)


def recovering(worker: Worker) -> Callable[[], object]:
    execution = start(step("a"), step("b", 1))
    return lambda: Execution.objects.filter(pk=execution.pk).recover(now=NOW)


PREPARED: list[Prepared] = [
    finishing,
    advancing,
    completing,
    stopping,
    retrying,
    cancelling,
    terminating,
    recovering,
]


def claimed(worker: Worker) -> list[Held]:
    (task,) = claim(worker, limit=1)
    return [task]


def test_a_longer_queue_takes_no_more_steps() -> None:
    worker, taken = make_worker(), dict[str, list[int]]()
    for size in (FEW, MANY):
        for _ in range(size // 4):
            steps = [step("x"), step("y", 1), step("z", 2), step("last", 2)]
            Execution.objects.submit("Waiting", steps, initiator=SOMEBODY, now=NOW)
        for prepared in PREPARED:
            act = prepared(worker)
            with steps_of_sqlite() as steps_taken:
                act()
            taken.setdefault(prepared.__name__, []).append(len(steps_taken))
    assert {name: costs for name, costs in taken.items() if costs[1] >= costs[0] * 1.5 + 5} == {}
