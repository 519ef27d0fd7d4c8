"""The next seat of a pool, held for a direct request: one at a time, never for longer than a lease."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db import connection, transaction

from activities.models import Activity, Ending
from execution.loops import housekeeping, recovery
from execution.loops.scheduler import tick
from execution.models import Limit, Reservation, WorkerTask
from execution.models.adhoc import job_line
from execution.models.reservation import LOST, Lost
from tests.base import NOW, SOMEBODY, claim, end, enqueue, everything, fresh, make_worker, seconds, step
from tests.refusing import database_that_refuses

pytestmark = pytest.mark.django_db

LEASE = 60


@pytest.fixture(autouse=True)
def lease_of_a_minute(settings: Any) -> None:
    settings.JIM_LEASE_SECONDS = LEASE


def reserve(pool: str = "default", *, at: float = 0) -> Reservation | None:
    line = job_line(step(pool=pool), now=NOW)
    return Reservation.objects.reserve(line, holder="here:1", now=NOW + seconds(at))


def reserved(pool: str = "default", *, at: float = 0) -> Reservation:
    reservation = reserve(pool, at=at)
    assert reservation is not None
    return fresh(reservation)


def take(reservation: Reservation, *, at: float = 0) -> bool:
    line = job_line(step("direct", pool=reservation.pool), now=NOW)
    return reservation.take(line, initiator=SOMEBODY, now=NOW + seconds(at))


def taken(pool: str = "default", *, at: float = 0) -> Reservation:
    reservation = reserved(pool, at=at)
    assert take(reservation, at=at)
    return fresh(reservation)


def ending(reservation: Reservation, *, at: float = 0) -> Ending:
    assert reservation.activity_id is not None
    return Ending(reservation.activity_id, "complete", NOW + seconds(at), reservation.taken_at, result=42)


def state() -> list[tuple[str, bool, bool]]:
    """(pool, taken, live) of each reservation."""
    rows = Reservation.objects.order_by("created_at", "pool")
    return [(row.pool, row.taken_at is not None, row.released_at is None) for row in rows]


class TestReserve:
    def test_one_is_live_per_pool(self) -> None:
        first = reserved()
        assert (first.lease_until, first.taken_at) == (NOW + seconds(LEASE), None)
        assert reserve() is None
        assert reserve("other") is not None
        assert state() == [("default", False, True), ("other", False, True)]
        assert not WorkerTask.objects.exists()
        assert not Activity.objects.exists()

    def test_only_the_newest_released_one_of_a_pool_is_kept(self) -> None:
        for at in range(5):
            reserved(at=at).release(NOW + seconds(at))
        reserved(at=9)
        assert state() == [("default", False, False), ("default", False, True)]

    def test_it_does_not_hide_in_a_transaction(self, transactional_db: None) -> None:
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
            reserve()


class TestTake:
    def test_its_request_begins_with_an_activity_of_its_own(self) -> None:
        reservation = taken(at=3)
        activity = Activity.objects.get()
        assert reservation.activity == activity
        assert (reservation.taken_at, reservation.lease_until) == (NOW + seconds(3), NOW + seconds(3 + LEASE))
        assert (activity.status, activity.target_name) == ("in_progress", "direct")
        assert activity.initiator_name == "ada"
        assert (activity.worker_id, activity.executed_at) == (reservation.pk, NOW + seconds(3))
        assert not WorkerTask.objects.exists()

    def test_it_waits_until_a_seat_is_free(self) -> None:
        Limit.objects.create(key="pool:default", size=1)
        enqueue(step("running"))
        worker = make_worker()
        running = claim(worker)
        assert len(running) == 1
        reservation, before = reserved(), everything()
        assert take(reservation) is False
        assert everything() == before
        end(worker, *running)
        assert take(reservation)

    @pytest.mark.parametrize("key", ["global", "type:python", "pool:default"])
    def test_any_of_its_limits_may_be_full(self, key: str) -> None:
        Limit.objects.create(key=key, size=0)
        assert take(reserved()) is False

    def test_it_is_not_in_its_own_way_but_a_taken_one_of_another_pool_is(self) -> None:
        Limit.objects.create(key="global", size=1)
        one, other = reserved("one"), reserved("other")
        assert take(one)
        assert take(other) is False
        assert fresh(one).finish(ending(fresh(one)), now=NOW)
        assert take(other)

    @pytest.mark.parametrize("how", ["released", "lapsed", "taken"])
    def test_what_is_not_its_own_any_more_is_not_taken(self, how: str) -> None:
        reservation = reserved()
        stale = fresh(reservation)
        if how == "released":
            reservation.release(NOW)
        elif how == "lapsed":
            Reservation.objects.expire(NOW + seconds(LEASE + 1))
        else:
            take(reservation)
        before = everything()
        with pytest.raises(Lost), transaction.atomic():
            take(stale)
        assert everything() == before


def test_a_live_reservation_pauses_the_queue_of_its_pool_only() -> None:
    Limit.objects.create(key="pool:default", size=1)
    enqueue(step("queued"), step("elsewhere", pool="other"))
    reservation, worker = reserved(), make_worker()
    assert [task.name for task in claim(worker)] == ["elsewhere"]
    take(reservation)
    assert claim(worker) == []
    reservation = fresh(reservation)
    assert reservation.finish(ending(reservation), now=NOW)
    assert [task.name for task in claim(worker)] == ["queued"]


class TestTurns:
    """After a release one queued task passes before the next reservation."""

    def release_before(self, *names: str, at: float = 0) -> None:
        reservation = reserved(at=at)
        enqueue(*(step(name) for name in names))
        assert reservation.release(NOW + seconds(at))

    def test_the_first_in_order_passes_but_none_that_is_put_off(self) -> None:
        reservation = reserved()
        first, later, *_ = enqueue(
            step("a", priority=9), step("b", priority=9), step("c"), step("d", priority=9, pool="other")
        )
        WorkerTask.objects.filter(pk=first.pk).update(is_delayed=True, available_at=NOW + seconds(5))
        reservation.release(NOW)
        assert fresh(reservation).passes_first == later.pk

    def test_the_next_waits_until_it_has_been_claimed(self) -> None:
        self.release_before("a", "b")
        assert reserve() is None
        assert state() == [("default", False, False)]
        assert reserve("other") is not None
        claim(make_worker(), limit=1)
        assert reserve() is not None

    def test_the_next_waits_no_longer_than_a_lease(self) -> None:
        self.release_before("a")
        assert reserve(at=LEASE - 1) is None
        assert reserve(at=LEASE) is not None


class TestFence:
    def test_its_end_is_recorded_and_the_seat_is_free(self) -> None:
        reservation = taken()
        assert reservation.beat(NOW + seconds(1))
        assert fresh(reservation).lease_until == NOW + seconds(1 + LEASE)
        assert reservation.finish(ending(reservation, at=2), now=NOW + seconds(2))
        activity = Activity.objects.get()
        assert (activity.status, activity.result, activity.finished_at) == ("complete", 42, NOW + seconds(2))
        assert fresh(reservation).released_at == NOW + seconds(2)

    def test_a_release_in_the_middle_counts_as_cancelled(self) -> None:
        reservation = taken()
        assert reservation.release(NOW + seconds(2), why="enough")
        activity = Activity.objects.get()
        assert (activity.status, activity.message) == ("cancelled", "enough")
        assert (activity.executed_at, activity.finished_at) == (NOW, NOW + seconds(2))

    @pytest.mark.parametrize("how", ["finished", "released", "lapsed"])
    def test_nothing_of_a_holder_counts_after_that(self, how: str) -> None:
        reservation = taken()
        later = NOW + seconds(LEASE + 1)
        if how == "finished":
            reservation.finish(ending(reservation), now=NOW)
        elif how == "released":
            reservation.release(NOW)
        else:
            assert Reservation.objects.expire(later) == 1
        before = everything()
        assert reservation.beat(later) is False
        assert reservation.finish(ending(reservation), now=later) is False
        assert reservation.release(later) is False
        assert reservation.lapse(later + seconds(LEASE)) is False
        assert everything() == before


class TestExpiry:
    def test_a_lease_is_waited_for_and_what_ran_in_it_has_failed(self) -> None:
        reservation, over = taken(), NOW + seconds(2 * LEASE + 1)
        assert Reservation.objects.expire(NOW + seconds(LEASE)) == 0
        reservation.beat(NOW + seconds(LEASE))
        assert Reservation.objects.expire(NOW + seconds(LEASE + 1)) == 0
        assert Reservation.objects.expire(over) == 1
        activity = Activity.objects.get()
        assert (activity.status, activity.error) == ("failed_with_error", LOST)
        assert (activity.executed_at, activity.finished_at) == (NOW, over)
        assert activity.permanently_failed

    def test_a_queued_task_passes_first_then_as_well(self) -> None:
        reservation = reserved()
        [task] = enqueue(step("a"))
        Reservation.objects.expire(NOW + seconds(LEASE + 1))
        assert fresh(reservation).passes_first == task.pk

    @pytest.mark.parametrize("who", ["scheduler", "worker", "next request"])
    def test_whoever_comes_first_frees_the_seat(self, who: str) -> None:
        first, later = taken(), LEASE + 1
        if who == "scheduler":
            tick(NOW + seconds(later))
        elif who == "worker":
            recovery.expire_reservations(NOW + seconds(later))
        else:
            assert reserve(at=later) is not None
        assert fresh(first).released_at == NOW + seconds(later)
        assert not Activity.objects.open().exists()

    def test_one_that_the_database_refuses_keeps_no_other(self) -> None:
        for pool in ("bad", "good"):
            reserved(pool)
        with database_that_refuses("NEW.pool = 'bad'", table="execution_reservation"):
            recovery.expire_reservations(NOW + seconds(LEASE + 1))
        assert state() == [("bad", False, True), ("good", False, False)]

    def test_housekeeping_removes_what_is_long_over(self) -> None:
        reserved().release(NOW)
        reserved("other")
        assert housekeeping.prune_reservations(NOW + seconds(3600)) == 0
        assert housekeeping.prune_reservations(NOW + seconds(25 * 3600)) == 1
        assert state() == [("other", False, True)]


# What: on SQLite, on PostgreSQL. Two statements of `reserve` and `finish` are a savepoint here, BEGIN and
# COMMIT in real life, and one of `finish` looks for webhooks. A request that finds a free seat takes it in
# the transaction that reserves it.
STATEMENTS = {"reserve": (5, 5), "take": (5, 6), "finish": (6, 7), "beat": (1, 1), "expire": (1, 1)}


def test_the_statements_of_one_request(
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    def pinned(what: str) -> AbstractContextManager[object]:
        return django_assert_num_queries(STATEMENTS[what][connection.vendor == "postgresql"])

    make_worker()
    for _ in range(2):
        reserved().release(NOW)
    line = job_line(step(), now=NOW)
    with pinned("reserve"):
        reservation = reserve()
    assert reservation is not None
    with pinned("take"):
        assert reservation.take(line, initiator=SOMEBODY, now=NOW)
    with pinned("beat"):
        reservation.beat(NOW)
    with pinned("expire"):
        Reservation.objects.expire(NOW)
    with pinned("finish"):
        assert reservation.finish(ending(reservation), now=NOW)
