"""A batch is a handful of statements, whatever its size. The numbers are pinned: one more is a decision."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from django.db import connection

from activities.models import Activity, ActivityItem, OutputLine
from execution.loops import recovery
from execution.loops.invoker import invoke
from execution.loops.recorder import StepOutput, write
from execution.loops.scheduler import is_due, next_due
from execution.models import Execution, Worker, WorkerTask
from execution.models.attempt import ClaimedTask
from schedules.generator import generate
from schedules.models import Occurrence
from tests.base import (
    NOW,
    SOMEBODY,
    break_down,
    claim,
    end,
    end_and_claim,
    make_schedule,
    make_worker,
    seconds,
    start,
    step,
)

pytestmark = [pytest.mark.django_db, pytest.mark.parametrize("size", [1, 7])]
DUE = NOW + seconds(60)
# What: on SQLite (where a task and its activity are two statements), on PostgreSQL (one more where listeners
# are told; a claim is a single statement,
# and so is the end of what needs no second thought, which also says whether anybody listens).
# Claims and finishes take part in the transaction around them; of the others, two statements are their own: a
# savepoint here, BEGIN and COMMIT in real life. Whenever other activities end or something is noticed, one
# asks whether anybody listens; not at a start, where another one asks that besides.
STATEMENTS = {
    "generate": (8, 8),
    "enqueue": (2, 1),
    "start": (17, 16),
    "claim": (3, 1),
    "finish": (5, 3),
    "advance": (7, 5),
    "advance and claim": (9, 5),
    "complete": (10, 8),
    "retry": (7, 8),
    "fail": (12, 10),
    "account": (12, 12),
    "cancel": (17, 18),
    "recover": (15, 16),
    "say": (6, 6),
    "look": (2, 2),
}
Pinned = Callable[[str], AbstractContextManager[object]]


@pytest.fixture
def pinned(django_assert_num_queries: Callable[[int], AbstractContextManager[object]]) -> Pinned:
    return lambda what: django_assert_num_queries(STATEMENTS[what][connection.vendor == "postgresql"])


@pytest.fixture
def worker() -> Worker:
    return make_worker()


def make_due(size: int) -> None:
    """So many schedules with a pending occurrence; each has a group of two steps, then one step."""
    steps = step("a", max_retries=1), step("b"), step("c", 1)
    for _ in range(size):
        make_schedule(*steps, spec={"cron": ["* * * * *"]})
    generate(DUE)


def claimed(worker: Worker, size: int) -> tuple[list[ClaimedTask], list[ClaimedTask]]:
    """The first groups of so many executions, claimed: all tasks called a, all called b."""
    make_due(size)
    invoke(DUE)
    tasks = claim(worker, limit=1_000, now=DUE)
    assert len(tasks) == 2 * size
    return [task for task in tasks if task.name == "a"], [task for task in tasks if task.name == "b"]


def test_generate(size: int, pinned: Pinned) -> None:
    for _ in range(size):
        make_schedule(spec={"cron": ["* * * * *"]})
    with pinned("generate"):
        generate(DUE)
    assert Occurrence.objects.pending().count() == size


def test_enqueue(size: int, pinned: Pinned) -> None:
    with pinned("enqueue"):
        WorkerTask.objects.enqueue([step("job")] * size, initiator=SOMEBODY, now=NOW)
    assert WorkerTask.objects.count() == size


def test_from_start_to_end(size: int, pinned: Pinned, worker: Worker) -> None:
    make_due(size)
    with pinned("start"):
        invoke(DUE)
    assert (Execution.objects.count(), WorkerTask.objects.count()) == (size, 3 * size)
    with pinned("claim"):
        tasks = claim(worker, limit=1_000, now=DUE)
    assert len(tasks) == 2 * size
    with pinned("finish"):
        assert len(end(worker, *(task for task in tasks if task.name == "a"), now=DUE)) == size
    with pinned("advance"):
        end(worker, *(task for task in tasks if task.name == "b"), now=DUE)
    assert WorkerTask.objects.queued().count() == size
    last = claim(worker, limit=1_000, now=DUE)
    with pinned("complete"):
        end(worker, *last, now=DUE)
    assert Execution.objects.filter(status="completed").count() == size


def test_finish_advance_and_claim(size: int, pinned: Pinned, worker: Worker) -> None:
    firsts, seconds_ = claimed(worker, size)
    end(worker, *firsts, now=DUE)
    with pinned("advance and claim"):
        assert len(end_and_claim(worker, *seconds_, now=DUE)) == size


def test_finish_and_retry(size: int, pinned: Pinned, worker: Worker) -> None:
    firsts, _ = claimed(worker, size)
    with pinned("retry"):
        assert len(break_down(worker, *firsts, now=DUE)) == size


def test_fail_and_account(size: int, pinned: Pinned, worker: Worker) -> None:
    firsts, seconds_ = claimed(worker, size)
    end(worker, *firsts, now=DUE)
    with pinned("fail"):
        break_down(worker, *seconds_, now=DUE)
    assert Execution.objects.filter(status="failed").count() == size
    with pinned("account"):
        invoke(DUE)
    assert not Execution.objects.unaccounted().exists()


def test_cancel(size: int, pinned: Pinned, worker: Worker) -> None:
    execution = start(*(step(f"step {number}") for number in range(size)), step("last", 1))
    with pinned("cancel"):
        execution.cancel(initiator=SOMEBODY, now=NOW)
    assert Activity.objects.filter(parent=execution.activity_id, status="cancelled").count() == size + 1


def test_recover(size: int, pinned: Pinned, worker: Worker) -> None:
    claimed(worker, size)
    worker.stop(DUE)
    with pinned("recover"):
        recovery.recover(DUE)
    assert WorkerTask.objects.queued().count() == 2 * size


def test_what_running_steps_say(size: int, pinned: Pinned, worker: Worker) -> None:
    firsts, seconds_ = claimed(worker, size)
    saids = [StepOutput(task.activity_id, lambda: DUE) for task in firsts + seconds_]
    for said in saids:
        said.output("stdout", ["hello"])
        said.item("ada", "ok", "")
        said.progress(1, 2, "half")
    with pinned("say"):
        write(saids, worker_id=worker.pk)
    assert OutputLine.objects.count() == ActivityItem.objects.count() == 2 * size
    assert Activity.objects.filter(progress_done=1, progress_total=2, message="half").count() == 2 * size


def test_looking_whether_anything_is_due(size: int, pinned: Pinned) -> None:
    for _ in range(size):
        make_schedule(spec={"cron": ["0 0 1 1 *"]})
    with pinned("look"):
        assert not is_due(NOW)
        assert next_due(NOW) is not None
