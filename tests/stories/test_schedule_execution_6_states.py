"""Execution states: in progress, then completed, failed or cancelled, and nothing after that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from activities.models import Activity
from execution.loops.scheduler import tick
from execution.models import Execution, WorkerTask
from tests.base import NOW, SOMEBODY, claim, end, everything, fresh, make_worker, run_until_idle, start, step

pytestmark = pytest.mark.django_db(transaction=True)


def run_to_its_end(function: str) -> Execution:
    execution = start(step("a", 0, function))
    run_until_idle()
    return execution


def cancelled() -> Execution:
    execution = start(step("a"), step("b", 1))
    worker = make_worker()
    (task,) = claim(worker)
    assert execution.cancel(initiator=SOMEBODY, now=NOW)
    assert fresh(execution).state == "cancelling"
    end(worker, task, status="cancelled", interrupted="cancel")
    return execution


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (partial(run_to_its_end, "noop"), "completed"),
        (partial(run_to_its_end, "fail"), "failed"),
        (cancelled, "cancelled"),
    ],
)
def test_nothing_is_open_after_its_end_and_nothing_moves_it(
    ending: Callable[[], Execution], status: str
) -> None:
    execution = ending()
    assert fresh(execution).status == status
    assert fresh(execution).finished_at is not None
    assert not WorkerTask.objects.exists()
    assert not Activity.objects.open().exists()
    tick(NOW)
    before = everything()
    assert fresh(execution).cancel(initiator=SOMEBODY, now=NOW) is False
    assert fresh(execution).terminate(initiator=SOMEBODY, now=NOW) is False
    assert Execution.objects.advance([fresh(execution)], now=NOW) == []
    assert Execution.objects.start([], now=NOW) == []
    run_until_idle()
    assert everything() | {"Worker": []} == before | {"Worker": []}
