"""Run a loop until it ends or a signal stops it."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Protocol

from django.conf import settings
from django.db import Error, OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from database.outage import Outage

RETRY_SECONDS = 2
BUSY_MILLISECONDS = 20
PREPARED_AFTER = 5
logger = logging.getLogger(__name__)


class Loop(Protocol):
    def run(self) -> Any: ...

    def stop(self) -> None: ...


def run_until_signal(loop: Loop) -> Any:
    """Run the loop in a thread of its own until it ends or a signal stops it; return its result.

    If the loop ran in the main thread, a signal handler could interrupt it while it holds the lock that the
    handler needs to wake it.
    """
    result: list[Any] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            prepare_connections()
            result.append(loop.run())
        except BaseException as error:
            failure.append(error)
        finally:
            connection.close()
            asked.put(None)

    # A signal can interrupt another handler in the middle of any call: only this kind of queue is safe there.
    asked: SimpleQueue[int | None] = SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        asked.put(number)

    _spare_the_collector()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    thread = threading.Thread(target=body, name=type(loop).__name__)
    thread.start()
    while thread.is_alive():
        # Wake up now and then: a signal that another thread receives does not wake this one.
        with suppress(Empty):
            loop.stop() if asked.get(timeout=0.5) is not None else thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _spare_the_collector() -> None:
    """Make garbage collection rare, and exclude what is loaded now: tasks leave few reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def wait_for_database(stopping: threading.Event) -> None:
    outage = Outage(logger, "waiting for the database")
    while not stopping.is_set():
        try:
            connection.ensure_connection()
        except Error as error:
            outage.note(error)
            stopping.wait(RETRY_SECONDS)
        else:
            return


def prepare_connections() -> None:
    """Configure the database connections of this thread, but not those of the threads that run steps.

    If a thread freezes in a transaction, the database ends the transaction well before the lease ends, so
    that the thread commits nothing after other workers have taken over. Statements are planned once and use
    only indexes: a plan that was made while the queue was empty must also be good when the queue is full.
    """
    thread = threading.get_ident()

    def prepare(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
        if threading.get_ident() != thread:
            return
        if connection.vendor == "postgresql":
            milliseconds = int(settings.JIM_LEASE_SECONDS * 500)
            with connection.cursor() as cursor:
                cursor.execute(f"SET idle_in_transaction_session_timeout = {milliseconds}")
                cursor.execute("SET enable_seqscan = off")
                cursor.execute("SET enable_bitmapscan = off")
                # Up to PostgreSQL 17, statements without an index look so expensive that they are compiled.
                cursor.execute("SET jit = off")
            connection.connection.prepare_threshold = PREPARED_AFTER
        else:
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
            if _often not in connection.execute_wrappers:
                connection.execute_wrappers.append(_often)

    connection.close()
    connection_created.connect(prepare, weak=False, dispatch_uid=f"prepare-{thread}")


def _often(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    """Execute a statement; while SQLite is locked, retry every few milliseconds.

    The retries of SQLite itself would soon be 100 ms apart. This is too long: a worker that has much to write
    releases the lock for only a millisecond or two at a time.
    """
    enough = time.monotonic() + context["connection"].settings_dict["OPTIONS"]["timeout"]
    while True:
        try:
            return execute(sql, params, many, context)
        except OperationalError as error:
            is_over = context["connection"].in_atomic_block or time.monotonic() > enough
            if is_over or "locked" not in str(error):
                raise
