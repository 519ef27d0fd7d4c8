"""Makes two calls meet in the database: each in a thread and on a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from django.db import connection, models, transaction

from tests.waiting import wait_until

BUSY_SECONDS = 0.03


class Caller(threading.Thread):
    """Keeps what its call returned or raised."""

    def __init__(self, call: Callable[[], Any], barrier: threading.Barrier | None = None) -> None:
        super().__init__(daemon=True)
        self.call, self.barrier = call, barrier
        self.result: Any = None

    def run(self) -> None:
        try:
            connection.ensure_connection()
            if self.barrier is not None:
                self.barrier.wait(10)
            self.result = self.call()
        except Exception as error:
            self.result = error
        finally:
            connection.close()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """All start at the same moment; their results, in the order of the calls."""
    barrier = threading.Barrier(len(calls))
    callers = [Caller(call, barrier) for call in calls]
    for caller in callers:
        caller.start()
    return [_ended(caller).result for caller in callers]


def queue_up(*calls: Callable[[], Any], behind: models.QuerySet[Any] | Callable[[], Any]) -> list[Any]:
    """Each gets as far as it can while somebody else holds these rows, or what this call holds before its
    commit; then all go on, in their order.

    SQLite has one lock for all rows, and those who wait for it get it in no order.
    """
    callers = []
    with transaction.atomic():
        if isinstance(behind, models.QuerySet):
            assert list(behind.select_for_update(of=("self",), no_key=True))
        else:
            behind()
        for call in calls:
            callers.append(Caller(call))
            callers[-1].start()
            _wait_until_blocked(callers)
    return [_ended(caller).result for caller in callers]


def _wait_until_blocked(callers: list[Caller]) -> None:
    if connection.vendor == "postgresql":
        wait_until(lambda: _waiting() >= sum(caller.is_alive() for caller in callers))
    else:
        # Nobody can be seen waiting for SQLite's lock.
        time.sleep(BUSY_SECONDS)


def _waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        (count,) = cursor.fetchone()
        return int(count)


def _ended(caller: Caller) -> Caller:
    caller.join(30)
    assert not caller.is_alive(), "a call did not come back"
    return caller


class Meeting:
    """How two calls meet: one of them first in the queue for a lock, or in no order, then several times."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.rounds = range(6 if order == "any" else 1)

    def __call__(
        self, one: Callable[[], Any], other: Callable[[], Any], *, behind: models.QuerySet[Any]
    ) -> tuple[Any, Any]:
        """What each of them returned or raised."""
        if self.order == "any":
            first, second = at_once(one, other)
        elif self.order == "one first":
            first, second = queue_up(one, other, behind=behind)
        else:
            second, first = queue_up(other, one, behind=behind)
        return first, second
