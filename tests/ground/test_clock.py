"""One clock for all hosts: the database's."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.db import connection

from database import clock

pytestmark = pytest.mark.django_db
WRONG = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_synced", None)


def database_time() -> datetime:
    with connection.cursor() as cursor:
        sqlite, postgresql = "SELECT strftime('%Y-%m-%dT%H:%M:%f+00:00')", "SELECT clock_timestamp()"
        cursor.execute(postgresql if connection.vendor == "postgresql" else sqlite)
        (now,) = cursor.fetchone()
    return now if isinstance(now, datetime) else datetime.fromisoformat(now)


def test_it_is_the_time_of_the_database_in_utc() -> None:
    began = time.monotonic()
    before, now, after = database_time(), clock.now(), database_time()
    # Nobody knows how much of its way an answer still had before it.
    doubt = timedelta(seconds=time.monotonic() - began, milliseconds=5)
    assert before - doubt <= now <= after + doubt
    assert now.utcoffset() == timedelta()


def test_a_host_whose_clock_is_wrong_has_the_right_time_all_the_same() -> None:
    truth = database_time()
    with time_machine.travel(WRONG):
        told, skew = clock.now(), clock.skew()
    # SQLite lives in this process: there is no other clock.
    expected = WRONG if connection.vendor == "sqlite" else truth
    assert abs(told - expected) < timedelta(days=1)
    if connection.vendor == "sqlite":
        assert skew is None
    else:
        assert skew is not None
        assert abs(skew - (WRONG - truth)) < timedelta(days=1)
        assert clock.trouble(skew).endswith("behind the database's")


def test_the_database_is_not_asked_each_time(
    django_assert_num_queries: Callable[[int], AbstractContextManager[object]],
) -> None:
    clock.now()
    with django_assert_num_queries(0):
        times = [clock.now() for _ in range(100)]
    assert times == sorted(times)


def test_threads_without_a_connection_have_an_estimate() -> None:
    assert clock.now() <= clock.estimate() <= clock.now()


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite's clock is this process's own")
def test_a_process_that_was_stopped_while_it_asked_is_not_late_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the stop would count as the way there."""
    ways = iter([7200.0])
    asked = clock._look

    def stopped_once() -> tuple[float, float, datetime]:
        way = next(ways, 0.0)
        took, at, then = asked()
        return took + way, at + way / 2, then

    monkeypatch.setattr(clock, "_look", stopped_once)
    clock.sync()
    assert abs(clock.estimate() - database_time()) < timedelta(minutes=30)
