"""Many claim at once under a limit: never more run than it allows, and nothing waits that has room."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from database import clock
from execution.models import Limit, Reservation, WorkerTask
from execution.models.attempt import ClaimedTask
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, claim, end_and_claim, enqueue, make_worker, seconds, start, step
from tests.invariants import violations
from tests.races.meeting import at_once, queue_up
from tests.settings import TEST_DB

pytestmark = pytest.mark.django_db(transaction=True)

postgresql_only = pytest.mark.skipif(TEST_DB != "postgres", reason="SQLite has one lock for everybody")


def limit(key: str, size: int) -> Limit:
    return Limit.objects.define(key, size, initiator=SOMEBODY, now=NOW)


def names(result: Any) -> list[str]:
    assert not isinstance(result, Exception), result
    return sorted(task.name for task in result)


def test_limits_with_keys_in_common_are_kept_together() -> None:
    """Sets of keys that overlap, taken in any order by workers that do not know of each other."""
    limits = {"global": 6, "resource:a": 2, "resource:b": 2, "pool:ldap": 3}
    for key, size in limits.items():
        limit(key, size)
    for _ in range(3):
        enqueue(
            *(
                step(f"{number}", resources=[["a"], ["b"], ["a", "b"]][number % 3], pool=pool)
                for number in range(18)
                for pool in ("ldap", "default")
            )
        )
        workers = [make_worker() for _ in range(4)]
        found = at_once(*(partial(claim, worker, limit=5) for worker in workers))
        running = Counter(key for result in found for task in result for key in row_keys(task))
        claimed = [task.pk for result in found for task in result]
        assert len(claimed) == len(set(claimed)) == WorkerTask.objects.processing().count()
        assert all(running[key] <= size for key, size in limits.items()), running
        assert claim(make_worker()) == []
        WorkerTask.objects.all().delete()


@postgresql_only
def test_who_claims_waits_until_another_has_taken_its_room() -> None:
    """What is not yet committed cannot be counted: without the lock of the limit, both take the room."""
    limit("global", 1)
    enqueue(step("job 1"), step("job 2"))
    (found,) = queue_up(partial(claim, make_worker()), behind=partial(claim, make_worker(), limit=1))
    assert names(found) == []
    assert WorkerTask.objects.processing().get().name == "job 1"


def row_keys(task: ClaimedTask) -> list[str]:
    return str(task.step["limit_keys"]).split("\n")


def test_workers_that_finish_and_claim_never_exceed_it() -> None:
    """Each in a thread of its own, for as long as there is work; somebody watches."""
    limit("global", 3)
    keys = {task.key: task.limit_keys for task in enqueue(*(step(f"job {number}") for number in range(24)))}
    most: list[int] = []
    done = threading.Event()

    def work() -> int:
        worker, count = make_worker(), 0
        # Who finds no room looks again soon, not at once: on SQLite, those who end tasks need the lock.
        while not done.wait(0.01):
            tasks = claim(worker, limit=2, now=clock.now())
            began = clock.now()
            while tasks:
                count += len(tasks)
                tasks = end_and_claim(worker, *tasks, limit=2, now=clock.now(), executed_at=began)
                began = clock.now()
            if not WorkerTask.objects.exists():
                done.set()
        return count

    def watch() -> None:
        while not done.wait(0.001):
            most.append(WorkerTask.objects.processing().count())

    *counts, _ = at_once(work, work, work, watch)
    assert sum(counts) == 24
    assert 0 < max(most) <= 3
    assert violations(job_keys=keys) == []


def test_a_limit_comes_while_everybody_claims_and_queues() -> None:
    """Whatever was first: afterwards each task is marked, and the limit counts all of them."""
    for number in range(4):
        enqueue(*(step(f"job {n}") for n in range(10)))
        worker, other = make_worker(), make_worker()
        claimed, _, made, queued = at_once(
            partial(claim, worker, limit=2),
            partial(enqueue, step("late")),
            partial(limit, "global", 3),
            partial(start, step("with a plan")),
        )
        assert isinstance(made, Limit), made
        assert not isinstance(queued, Exception), queued
        assert not WorkerTask.objects.filter(is_limited=False).exists()
        more = claim(other)
        assert len(claimed) + len(more) == 3, number
        assert WorkerTask.objects.processing().count() == 3
        made.remove(initiator=SOMEBODY, now=NOW)
        assert not WorkerTask.objects.filter(is_limited=True).exists()
        WorkerTask.objects.all().delete()


def test_a_limit_goes_and_shrinks_while_everybody_claims() -> None:
    for _ in range(4):
        made, other = limit("global", 3), limit("pool:default", 5)
        enqueue(*(step(f"job {number}") for number in range(10)))
        one, two, _, _ = at_once(
            partial(claim, make_worker(), limit=9),
            partial(claim, make_worker(), limit=9),
            partial(made.remove, initiator=SOMEBODY, now=NOW),
            partial(other.edit, changes={"size": 4}, initiator=SOMEBODY, now=NOW),
        )
        assert len(one) + len(two) <= 5
        claim(make_worker())
        assert 4 <= WorkerTask.objects.processing().count() <= 5
        other.remove(initiator=SOMEBODY, now=NOW)
        WorkerTask.objects.all().delete()


def test_a_direct_request_and_a_claim_never_take_the_same_room() -> None:
    limit("global", 1)
    for _ in range(5):
        enqueue(step("queued"))

        def take() -> bool:
            with transaction.atomic():
                has_room = Limit.objects.room(limit_keys="global", pool="web")
                if has_room:
                    Reservation.objects.create(
                        pool="web",
                        limit_keys="global",
                        holder="web:1",
                        created_at=NOW,
                        taken_at=NOW,
                        lease_until=NOW + seconds(60),
                    )
                return has_room

        took, claimed = at_once(take, partial(claim, make_worker()))
        assert took + len(claimed) == 1
        Reservation.objects.all().delete()
        WorkerTask.objects.all().delete()


@postgresql_only
def test_a_place_is_handed_over_without_the_lock_of_the_limit() -> None:
    """Somebody counts for it, and takes long."""
    made = limit("global", 2)
    enqueue(*(step(f"job {number}") for number in range(4)))
    worker = make_worker()
    first, _ = claim(worker)
    with transaction.atomic():
        assert Limit.objects.lock_sizes([made.key]) == {"global": 2}
        (found,) = at_once(partial(end_and_claim, worker, first))
    assert names(found) == ["job 2"]


@postgresql_only
def test_while_a_place_is_handed_over_nobody_else_finds_room() -> None:
    limit("global", 2)
    enqueue(*(step(f"job {number}") for number in range(6)))
    one, two, other = make_worker(), make_worker(), make_worker()
    (first,), (second,) = claim(one, limit=1), claim(two, limit=1)
    with transaction.atomic():
        assert names(end_and_claim(one, first)) == ["job 2"]
        found, handed_over = at_once(partial(claim, other), partial(end_and_claim, two, second))
        assert (names(found), names(handed_over)) == ([], ["job 3"])
    assert claim(other) == []
    assert WorkerTask.objects.processing().count() == 2


@postgresql_only
def test_who_makes_a_limit_smaller_waits_for_what_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing begins by the size it had, once it has another."""
    monkeypatch.setattr("execution.models.limit.PATIENCE_MILLISECONDS", 50)
    made = limit("global", 2)
    enqueue(*(step(f"job {number}") for number in range(6)))
    worker = make_worker()
    first, second = claim(worker)
    shrink = partial(made.edit, changes={"size": 1}, initiator=SOMEBODY, now=NOW)
    with transaction.atomic():
        (third,) = end_and_claim(worker, first)
        (refused,) = at_once(shrink)
    assert isinstance(refused, Refused)
    shrink()
    assert end_and_claim(worker, second) == []
    assert names(end_and_claim(worker, third)) == ["job 3"]


@postgresql_only
def test_a_full_limit_makes_nobody_wait_for_its_lock() -> None:
    """Somebody counts for the limit, and takes long; others go on with what does not need it."""
    limit("resource:crm", 0)
    enqueue(step("held", resources=["crm"]), step("free"))
    (found,) = queue_up(partial(claim, make_worker()), behind=Limit.objects.filter(key="resource:crm"))
    assert names(found) == ["free"]


@postgresql_only
def test_a_row_that_somebody_changes_is_passed_by() -> None:
    limit("global", 1)
    first, _ = enqueue(step("first"), step("second"))
    (found,) = queue_up(partial(claim, make_worker()), behind=WorkerTask.objects.filter(pk=first.pk))
    assert names(found) == ["second"]


@postgresql_only
def test_who_makes_a_limit_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody holds a row of the queue: the answer is to try again, and nobody waits behind it meanwhile."""
    monkeypatch.setattr("execution.models.limit.PATIENCE_MILLISECONDS", 50)
    enqueue(step())
    with transaction.atomic():
        list(WorkerTask.objects.lock())
        (refused,) = at_once(partial(limit, "global", 1))
    assert isinstance(refused, Refused)
    assert "Try again" in str(refused)
    assert not Limit.objects.exists()
    assert not WorkerTask.objects.filter(is_limited=True).exists()
