"""PostgreSQL only: whoever holds one row does not hold up the others. SQLite has one lock for everybody."""

from __future__ import annotations

from functools import partial

import psycopg
import pytest
from django.db import connection, transaction

from activities.models import Activity
from database.statements import AWAY
from execution.loops import recovery
from execution.loops.manual_runs import trigger
from execution.loops.scheduler import tick
from execution.models import Execution, Worker, WorkerTask
from tests.base import (
    NOW,
    SOMEBODY,
    claim,
    end,
    fates,
    make_schedule,
    make_worker,
    run_until_idle,
    seconds,
    start,
    step,
    step_statuses,
)
from tests.conftest import database_url
from tests.invariants import violations
from tests.races.meeting import at_once, queue_up
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_recovery_waits_for_nobody() -> None:
    """A worker that froze in the middle of a write holds up what it wrote, and nothing else."""
    held, free = start(step("a")), start(step("b"))
    worker = make_worker()
    claim(worker)
    Worker.objects.filter(pk=worker.pk).bury(now=NOW)
    for rows in (
        Execution.objects.filter(pk=held.pk),
        WorkerTask.objects.filter(execution=held),
        Activity.objects.filter(parent=held.activity_id),
    ):
        queue_up(lambda: recovery.recover(NOW), behind=rows)
        assert step_statuses(held) == {"a": ["in_progress"]}
    assert step_statuses(free) == {"b": ["failed_with_error", "pending"]}
    recovery.recover(NOW)
    run_until_idle()
    assert violations() == []


def test_terminate_and_release_lock_in_the_same_order() -> None:
    """Whichever is first: rows that are locked one by one are locked by id."""
    for _ in range(5):
        execution = start(*(step(f"step {number}") for number in range(20)))
        worker = make_worker()
        tasks = claim(worker)
        was_terminated, released = at_once(
            partial(execution.terminate, initiator=SOMEBODY, now=NOW),
            partial(WorkerTask.objects.release, tasks[::-1], worker_id=worker.pk),
        )
        assert was_terminated
        assert released in (set(), {task.pk for task in tasks})
    assert violations() == []


def test_an_invoker_and_a_worker_lock_executions_in_the_same_order() -> None:
    """Those that make way belong to several schedules, and started in another order than these."""
    a, b = (make_schedule(spec={"every": ["1m"]}, overlap="terminate_other") for _ in range(2))
    first, second = (
        Execution.objects.get(occurrence=trigger(each, initiator=SOMEBODY, now=NOW)) for each in (b, a)
    )
    assert first.pk < second.pk
    worker = make_worker()
    tasks, later = claim(worker), NOW + seconds(60)
    finished, ticked = queue_up(
        lambda: end(worker, *tasks, now=later),
        lambda: tick(later, recovering=False),
        behind=Execution.objects.filter(pk=first.pk),
    )
    assert (finished, ticked) == ({task.pk for task in tasks}, True)
    tick(later, recovering=False)
    assert [status for status, _ in [*fates(a), *fates(b)]] == ["started"] * 4
    run_until_idle(now=later)
    assert violations() == []


def test_a_transaction_that_idled_too_long_is_one_to_repeat() -> None:
    """PostgreSQL ends the session; nobody may take that for an error in the data."""

    def dawdle() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET idle_in_transaction_session_timeout = '50ms'")
        ours = connection.connection.info.backend_pid
        with transaction.atomic():
            Execution.objects.exists()
            wait_until(lambda: not is_connected(ours))

    (error,) = at_once(dawdle)
    assert isinstance(error, AWAY)


def is_connected(backend: int) -> bool:
    with psycopg.connect(database_url(), autocommit=True) as other:
        found = other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [backend])
        return found.fetchone() is not None
