"""Execution states: in progress, then completed, failed or cancelled, and nothing after that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from activities.models import Activity
from execution.models import Execution, WorkerTask
from execution.scheduler import tick
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    everything,
    fresh,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
)

pytestmark = pytest.mark.django_db(transaction=True)


def cancel(execution: Execution) -> None:
    assert execution.cancel(initiator=SOMEBODY, now=NOW)


def complete() -> Execution:
    execution = start(step("a"))
    run_until_idle()
    return execution


def fail() -> Execution:
    execution = start(step("a", 0, "fail"))
    run_until_idle()
    return execution


def cancelled() -> Execution:
    execution = start(step("a"), step("b", 1))
    cancel(execution)
    return execution


def test_the_scheduler_creates_it_in_progress_with_all_step_groups_queued() -> None:
    make_schedule(step("a"), step("b", 1), spec={"cron": ["* * * * *"]})
    tick(NOW + seconds(60))
    assert Execution.objects.get().status == Execution.Status.IN_PROGRESS
    assert WorkerTask.objects.count() == 2


def test_it_stays_in_progress_while_the_worker_advances_to_the_next_step_group() -> None:
    execution = start(step("a"), step("b", 1), step("c", 2))
    worker = make_worker()
    for index in (0, 1):
        assert (fresh(execution).status, fresh(execution).current_index) == ("in_progress", index)
        end(worker, *claim(worker))
    assert (fresh(execution).status, fresh(execution).current_index) == ("in_progress", 2)


def test_until_its_running_steps_have_ended_it_is_shown_as_cancelling() -> None:
    execution = start(step("a"))
    worker = make_worker()
    (task,) = claim(worker)
    cancel(execution)
    assert fresh(execution).state == "cancelling"
    end(worker, task, status="cancelled", interrupted="cancel")
    assert fresh(execution).state == "cancelled"


@pytest.mark.parametrize(
    ("ending", "status"), [(complete, "completed"), (fail, "failed"), (cancelled, "cancelled")]
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
