"""What statements cost a database, without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def steps_of_sqlite() -> Iterator[list[None]]:
    """One entry for every hundred instructions of its machine."""
    steps: list[None] = []
    connection.connection.set_progress_handler(lambda: steps.append(None), 100)
    try:
        yield steps
    finally:
        connection.connection.set_progress_handler(None, 0)
