"""Why a task does not run yet: in words, with names, for a page of tasks at once."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from execution.models import Limit, Reservation, Worker, WorkerTask
from execution.waits import reasons
from tests.base import NOW, SOMEBODY, break_down, claim, enqueue, make_worker, seconds, start, step

pytestmark = pytest.mark.django_db


def limit(key: str, size: int = 1) -> None:
    Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def why() -> dict[str, str]:
    tasks = list(WorkerTask.objects.select_related("worker", "execution").order_by("pk"))
    told = reasons(tasks, now=NOW)
    return {task.name: told[task.pk] for task in tasks}


def reserve(pool: str, limit_keys: str = "") -> None:
    Reservation.objects.create(
        pool=pool, limit_keys=limit_keys, holder="web:1", created_at=NOW, lease_until=NOW + seconds(60)
    )


def test_what_runs_and_what_waits_for_it() -> None:
    worker = make_worker()
    start(step("a", 0), step("b", 5), step("c", 5), step("d", 9))
    assert why()["d"] == "group 1 of 3 is queued: “a”"
    WorkerTask.objects.filter(name="a").update(available_at=NOW)
    claim(worker, now=NOW - seconds(38))
    told = why()
    assert told["a"] == f"runs on {worker} for 38 s"
    assert told["b"] == told["d"] == "group 1 of 3 is running: “a”"


def test_what_is_asked_to_stop() -> None:
    execution = start(step("a"))
    claim(make_worker(), now=NOW - seconds(5))
    execution.cancel(initiator=SOMEBODY, now=NOW)
    assert why()["a"].endswith("for 5.0 s, asked to stop")


def test_a_retry_says_when_and_which_attempt_it_is() -> None:
    start(step("a", max_retries=3, retry_seconds=38))
    worker = make_worker()
    break_down(worker, *claim(worker))
    assert why() == {"a": "retry in 38 s (attempt 2 of 4)"}


def test_what_is_put_off_says_until_when() -> None:
    soon, far = NOW + seconds(90), NOW + seconds(3 * 86_400)
    enqueue(step("soon") | {"available_at": soon}, step("far") | {"available_at": far})
    told = why()
    assert told["soon"] == "is put off: starts in 1 min 30 s"
    assert told["far"] == "is put off until Thu 2026-11-19 03:00:00 UTC"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("global", "everything is full: 1 of 1, held by execution {}"),
        ("pool:ldap", "pool ldap is full: 1 of 1, held by execution {}"),
        ("type:python", "type python is full: 1 of 1, held by execution {}"),
        (
            "resource:connected-system:7",
            "limit resource:connected-system:7 is full: 1 of 1, held by execution {}",
        ),
    ],
)
def test_a_full_limit_names_those_that_hold_it(key: str, words: str) -> None:
    limit(key)
    execution = start(step("first", pool="ldap", resources=["connected-system:7"]))
    claim(make_worker())
    enqueue(step("second", pool="ldap", resources=["connected-system:7"]))
    assert why()["second"] == words.format(execution.pk)


def test_no_more_than_three_are_named() -> None:
    limit("global", 5)
    enqueue(*(step(f"job {number}") for number in range(6)))
    claim(make_worker())
    assert why()["job 5"] == (
        "everything is full: 5 of 5, held by job “job 0”, job “job 1”, job “job 2” and 2 more"
    )


def test_the_most_particular_of_several_reasons_is_told() -> None:
    limit("global", 0)
    limit("resource:crm", 0)
    make_worker()
    enqueue(step("a", resources=["crm"]), step("b"))
    assert why() == {
        "a": "limit resource:crm is closed: its limit is 0",
        "b": "everything is closed: its limit is 0",
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
    assert set(why().values()) == {"reserved for a direct request"}


def test_nobody_is_there_for_the_pool() -> None:
    enqueue(step("a", pool="ldap"))
    assert why() == {"a": "no worker is alive that serves pool ldap"}


@pytest.mark.parametrize("is_limited", [False, True])
def test_how_many_go_before_it(is_limited: bool) -> None:
    make_worker()
    enqueue(*(step(f"{number}", resources=["crm"]) for number in range(120)))
    enqueue(step("urgent", resources=["crm"], priority=1))
    if is_limited:
        limit("resource:crm", 5)
    told = why()
    assert told["urgent"] == "waits for a free seat: it is the next"
    assert told["0"] == "waits for a free seat: 1 task goes before it"
    assert told["7"] == "waits for a free seat: 8 tasks go before it"
    assert told["98"] == "waits for a free seat: 99 tasks go before it"
    assert told["99"] == told["119"] == "waits for a free seat: 100 or more tasks go before it"


def test_a_page_of_many_takes_no_more_queries_than_one_of_few() -> None:
    limit("resource:full")
    limit("resource:open", 9)
    worker = make_worker()

    def fill() -> None:
        execution = start(step("a", resources=["full"]), step("b", 1))
        claim(worker, limit=1)
        start(step("flaky", max_retries=1))
        enqueue(step("c", resources=["full"]), step("d", resources=["open"]), step("e", pool="x"))
        assert execution.pk

    def count() -> int:
        tasks = list(WorkerTask.objects.select_related("worker", "execution").defer("execution__plan"))
        with CaptureQueriesContext(connection) as captured:
            reasons(tasks, now=NOW)
        return len(captured)

    fill()
    few = count()
    for _ in range(10):
        fill()
    assert count() == few == 1
