"""Makes two calls meet in the database: each in a thread and on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

from django.db import connection, models, transaction

from tests.waiting import PATIENCE_SECONDS, wait_until


class Caller(threading.Thread):
    """Keeps what its call returned or raised, and which statement it has sent that has not ended yet."""

    def __init__(self, call: Callable[[], Any], barrier: threading.Barrier | None = None) -> None:
        super().__init__(daemon=True)
        self.call, self.barrier = call, barrier
        self.result: Any = None
        self.sent = ""

    def run(self) -> None:
        try:
            connection.ensure_connection()
            if self.barrier is not None:
                self.barrier.wait(PATIENCE_SECONDS)
            with connection.execute_wrapper(self._execute):
                self.result = self.call()
        except Exception as error:
            self.result = error
        finally:
            connection.close()

    def _execute(self, execute: Any, sql: str, *arguments: Any) -> Any:
        self.sent = sql
        try:
            return execute(sql, *arguments)
        finally:
            self.sent = ""


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
        # SQLite does not tell who waits for its lock; while we have it, everybody does who wants to write.
        wait_until(lambda: all(_wants_to_write(caller) or not caller.is_alive() for caller in callers))


def _wants_to_write(caller: Caller) -> bool:
    return caller.sent.startswith(("BEGIN", "INSERT", "UPDATE", "DELETE"))


def _waiting() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        (count,) = cursor.fetchone()
        return int(count)


def _ended(caller: Caller) -> Caller:
    caller.join(PATIENCE_SECONDS)
    assert not caller.is_alive(), "a call did not come back"
    return caller


class Meeting:
    """How two calls meet: one of them first in the queue for a lock, or in no order, then several times."""

    ROUNDS: ClassVar = {"any": 3, "often": 10}

    def __init__(self, order: str) -> None:
        self.order = order
        self.rounds = range(self.ROUNDS.get(order, 1))

    def __call__(
        self, one: Callable[[], Any], other: Callable[[], Any], *, behind: models.QuerySet[Any]
    ) -> tuple[Any, Any]:
        """What each of them returned or raised."""
        if self.order in self.ROUNDS:
            first, second = at_once(one, other)
        elif self.order == "one first":
            first, second = queue_up(one, other, behind=behind)
        else:
            second, first = queue_up(other, one, behind=behind)
        return first, second
