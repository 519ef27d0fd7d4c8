"""Ends what is done to the database with `kill -9`, at any place that one chooses."""

from __future__ import annotations

import mmap
import os
import re
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from django.apps import apps
from django.db import connection, connections, transaction

# Held by whoever is about to be killed: whoever gets it next knows that the server has noticed.
LIFE = 9
WRITE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM)\s+\"?\w+_\w+", re.IGNORECASE)
_left_behind: list[Any] = []


class Death(NamedTuple):
    """`commits`: how many changes were final by then. `was_killed`: False if it came to its end."""

    was_killed: bool
    commits: int


def kill_at(point: int, call: Callable[[], object], *, any_statement: bool = False) -> Death:
    """Lets another process make the call; it is gone before the `point`-th change that would be final.

    That is a commit, or a write outside of any transaction. To die earlier within a transaction leaves
    nothing else behind: all that came before it is undone here too. `any_statement` counts all of them.
    """
    with mmap.mmap(-1, 8) as shared:
        pid = os.fork()
        if pid == 0:
            _die(point, call, shared, any_statement)
        _, status = os.waitpid(pid, 0)
        (commits,) = struct.unpack("q", shared[:])
    _wait_until_noticed()
    assert status in (0, signal.SIGKILL), "the call failed: see what it said"
    return Death(status == signal.SIGKILL, commits)


def _die(point: int, call: Callable[[], object], shared: mmap.mmap, any_statement: bool) -> None:
    """Never returns, and cleans up nothing."""
    try:
        _connect_anew()
        with _counting(point, shared, any_statement):
            call()
    except BaseException:
        sys.stderr.write(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _connect_anew() -> None:
    """The parent's connection is left as it is: to close it would end the parent's session."""
    _left_behind.append(connections["default"])
    connections["default"] = connections["default"].copy()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LIFE])


@contextmanager
def _counting(point: int, shared: mmap.mmap, any_statement: bool) -> Iterator[None]:
    passed = commits = 0

    def pass_place() -> None:
        nonlocal passed
        passed += 1
        if passed == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def change(write: Callable[[], Any]) -> Any:
        nonlocal commits
        pass_place()
        result = write()
        commits += 1
        shared[:] = struct.pack("q", commits)
        return result

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        write = partial(run, sql, params, many, context)
        is_final = WRITE.search(sql) is not None and not connection.in_atomic_block
        if is_final:
            return change(write)
        if any_statement:
            pass_place()
        return write()

    commit = partial(change, connections["default"].commit)
    with connection.execute_wrapper(execute), patch.object(connections["default"], "commit", commit):
        yield


def _wait_until_noticed() -> None:
    """PostgreSQL's end of the dead connection undoes what was not committed and frees its locks."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s), pg_advisory_unlock(%s)", [LIFE, LIFE])


@contextmanager
def kept_state(*more_apps: str) -> Iterator[Callable[[], None]]:
    """Yields what brings all rows of the engine's tables, and of `more_apps`, back to what they are now."""
    tables = [
        model._meta.db_table
        for app in ("activities", "schedules", "execution", *more_apps)
        for model in apps.get_app_config(app).get_models(include_auto_created=True)
    ]

    def restore() -> None:
        with transaction.atomic():
            _run(*(f'DELETE FROM "{table}"' for table in tables))
            _run(*(f'INSERT INTO "{table}" SELECT * FROM "kept_{table}"' for table in tables))

    _run(*(f'CREATE TEMPORARY TABLE "kept_{table}" AS SELECT * FROM "{table}"' for table in tables))
    try:
        yield restore
    finally:
        _run(*(f'DROP TABLE "kept_{table}"' for table in tables))


def _run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
