"""Why a task does not run yet: in words, with names, for a page of tasks at once."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from execution.models import Limit, Reservation, Worker, WorkerTask
from execution.queue.waits import reasons
from tests.base import NOW, SOMEBODY, break_down, claim, enqueue, make_worker, seconds, start, step

pytestmark = pytest.mark.django_db


def limit(key: str, size: int = 1) -> None:
    Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def why() -> dict[str, str]:
    """For a whole page, in one statement at most."""
    rows = WorkerTask.objects.select_related("worker", "execution").defer("execution__plan")
    tasks = list(rows.order_by("pk"))
    with CaptureQueriesContext(connection) as captured:
        told = reasons(tasks, now=NOW)
    assert len(captured) <= 1
    return {task.name: told[task.pk] for task in tasks}


def reserve(pool: str, limit_keys: str = "") -> None:
    Reservation.objects.create(
        pool=pool, limit_keys=limit_keys, holder="web:1", created_at=NOW, lease_until=NOW + seconds(60)
    )


def test_what_runs_and_what_waits_for_it() -> None:
    worker = make_worker()
    execution = start(step("a", 0), step("b", 5), step("c", 5), step("d", 9))
    assert why()["d"] == "group 1 of 3 is queued: “a”"
    WorkerTask.objects.filter(name="a").update(available_at=NOW)
    claim(worker, now=NOW - seconds(38))
    told = why()
    assert told["a"] == f"running on {worker} for 38 s"
    assert told["b"] == told["d"] == "group 1 of 3 is running: “a”"
    execution.cancel(initiator=SOMEBODY, now=NOW)
    assert why()["a"].endswith("for 38 s, asked to stop")


def test_what_is_put_off_and_what_nobody_is_there_for() -> None:
    soon, far = NOW + seconds(90), NOW + seconds(3 * 86_400)
    start(step("again", max_retries=3, retry_seconds=38))
    worker = make_worker()
    break_down(worker, *claim(worker))
    worker.stop(NOW)
    make_worker(NOW - seconds(3600))  # silent for longer than its lease, and not marked as dead yet
    enqueue(step("soon") | {"available_at": soon}, step("far") | {"available_at": far})
    enqueue(step("nobody's", pool="ldap"))
    assert why() == {
        "again": "retry in 38 s (attempt 2 of 4)",
        "soon": "delayed: starts in 1 min 30 s",
        "far": "delayed until Thu 2026-11-19 03:00:00 UTC",
        "nobody's": "no running worker serves pool ldap",
    }


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("global", "the global limit"),
        ("pool:ldap", "pool ldap"),
        ("type:python", "type python"),
        ("resource:crm:7", "limit resource:crm:7"),
    ],
)
def test_a_full_limit_names_three_of_those_that_hold_it(key: str, words: str) -> None:
    limit(key, 5)
    fields: dict[str, Any] = {"pool": "ldap", "resources": ["crm:7"]}
    execution = start(step("first", **fields))
    enqueue(*(step(f"job {number}", **fields) for number in range(5)))
    claim(make_worker())
    holders = f"execution {execution.pk}, job “job 0”, job “job 1” and 2 more"
    assert why()["job 4"] == f"{words} is full: 5 of 5 in use by {holders}"


def test_the_most_particular_of_several_reasons_is_told() -> None:
    limit("global", 0)
    limit("resource:crm", 0)
    make_worker()
    enqueue(step("a", resources=["crm"]), step("b"))
    assert why() == {
        "a": "limit resource:crm is closed: the limit is set to 0",
        "b": "the global limit is closed: the limit is set to 0",
    }


def test_a_seat_that_is_reserved() -> None:
    limit("pool:hr")
    reserve("ldap")
    reserve("hr", "pool:hr")
    Worker.objects.update(seats=1)
    worker = make_worker()
    Worker.objects.update(seats=1)
    enqueue(step("a", pool="ldap"), step("b", pool="hr"))
    assert claim(worker) == []
    assert set(why().values()) == {"waiting for a direct request, which runs first"}


@pytest.mark.parametrize("is_limited", [False, True])
def test_how_many_go_before_it(is_limited: bool) -> None:
    make_worker()
    enqueue(*(step(f"{number}", resources=["crm"]) for number in range(120)))
    enqueue(step("urgent", resources=["crm"], priority=1))
    if is_limited:
        limit("resource:crm", 5)
    told = why()
    assert told["urgent"] == "waiting for a free seat: this task is next"
    assert told["0"] == "waiting for a free seat: 1 task is ahead"
    assert told["7"] == "waiting for a free seat: 8 tasks are ahead"
    assert told["98"] == "waiting for a free seat: 99 tasks are ahead"
    assert told["99"] == told["119"] == "waiting for a free seat: 100 or more tasks are ahead"
