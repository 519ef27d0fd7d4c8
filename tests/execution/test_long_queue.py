"""However long the queue or the history is: what one task or run costs does not depend on the others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from execution.loops.invoker import invoke_soon
from execution.loops.manual_runs import Overlapping, trigger
from execution.loops.scheduler import tick
from execution.models import Execution, Worker
from execution.models.attempt import ClaimedTask
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    end_and_claim,
    enqueue,
    fresh,
    make_schedule,
    make_worker,
    seconds,
    start,
    step,
)
from tests.counting import steps_of_sqlite

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite counts its steps"),
]
BY: dict[str, Any] = {"initiator": SOMEBODY, "now": NOW}
LATER = NOW + seconds(7200)


def counted(taken: dict[str, list[int]], name: str, act: Callable[[], object]) -> None:
    with steps_of_sqlite() as steps:
        act()
    taken.setdefault(name, []).append(len(steps))


def grown(taken: dict[str, list[int]]) -> dict[str, list[int]]:
    """What takes more with many than with few."""
    assert all(len(costs) == 2 for costs in taken.values())
    return {name: costs for name, costs in taken.items() if costs[1] >= costs[0] * 1.5 + 5}


Act = Callable[[Worker, Execution], object]


def one(worker: Worker, now: datetime = NOW) -> list[ClaimedTask]:
    (task,) = claim(worker, limit=1, now=now)
    return [task]


# The steps of an execution, and what is counted.
WITH_AN_EXECUTION: dict[str, tuple[list[dict[str, Any]], Act]] = {
    "advance": (
        [step("a", priority=9), step("b", 1, priority=9)],
        lambda worker, _: end_and_claim(worker, *one(worker), limit=1),
    ),
    "complete": ([step("a", priority=9)], lambda worker, _: end(worker, *one(worker))),
    "stop": (
        [step("a", priority=9), step("b", 1), step("c", 2, run_if="always")],
        lambda worker, _: break_down(worker, *one(worker)),
    ),
    "retry": ([step("a", priority=9, max_retries=2)], lambda worker, _: break_down(worker, *one(worker))),
    "cancel": ([step("a"), step("b", 1)], lambda _, execution: execution.cancel(**BY)),
    "terminate": ([step("a"), step("b", 1)], lambda _, execution: execution.terminate(**BY)),
    "recover": (
        [step("a"), step("b", 1)],
        lambda _, execution: Execution.objects.filter(pk=execution.pk).recover(now=NOW),
    ),
}


def test_a_longer_queue_takes_no_more_steps() -> None:
    worker, taken = make_worker(), dict[str, list[int]]()
    for size in (5, 100):
        for _ in range(size):
            steps = [step("x"), step("y", 1), step("z", 2), step("last", 2)]
            Execution.objects.submit("Waiting", steps, **BY)
        enqueue(step("job", priority=9))
        counted(taken, "finish a job", lambda: end(worker, *one(worker)))
        for name, (steps, act) in WITH_AN_EXECUTION.items():
            counted(taken, name, partial(act, worker, fresh(start(*steps))))
    assert grown(taken) == {}


def test_a_longer_history_takes_no_more_steps() -> None:
    worker, taken = make_worker(), dict[str, list[int]]()
    schedule = make_schedule(step("a"), step("b", 1), spec={"cron": ["0 * * * *"]})

    def refused() -> None:
        with pytest.raises(Overlapping):
            trigger(schedule, initiator=SOMEBODY, now=LATER)

    one_after_the_other: dict[str, Callable[[], object]] = {
        "trigger": lambda: trigger(schedule, initiator=SOMEBODY, now=LATER),
        "be refused": refused,
        "go on": lambda: end(worker, *one(worker, LATER), now=LATER),
        "fail": lambda: break_down(worker, *one(worker, LATER), now=LATER),
        "account": lambda: invoke_soon([schedule.pk], now=LATER),
        "pause": lambda: fresh(schedule).pause(initiator=SOMEBODY, now=LATER),
    }
    for numbers in (range(10), range(10, 150)):
        for at in (NOW + seconds(number) for number in numbers):
            trigger(schedule, initiator=SOMEBODY, now=at)
            while tasks := claim(worker, now=at):
                end(worker, *tasks, now=at)
            invoke_soon([schedule.pk], now=at)
        with transaction.atomic():
            counted(taken, "fire", lambda: tick(LATER))
            transaction.set_rollback(True)
        with transaction.atomic():
            for name, act in one_after_the_other.items():
                counted(taken, name, act)
            transaction.set_rollback(True)
    assert grown(taken) == {}
