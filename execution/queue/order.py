"""The order of the queue: the highest priority first, then the lowest position, then the oldest task.

All code that finds the next tasks uses the order defined here, and the indexes of WorkerTask end with it.
`conditions.py` defines which tasks are ready; `turns.py` lists the whole queue, including tasks that wait.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import F

Turn = tuple[int, int, int]

FIELDS = ("-priority", "position", "pk")
"""The order for `order_by`."""
INDEXED = (F("priority").desc(), F("position"), F("id"))
"""The order as the last columns of an index."""


def turn(priority: int, position: int, pk: int) -> Turn:
    """Return the key by which tasks are sorted in Python."""
    return -priority, position, pk


def by_turn(table: str = "") -> str:
    """Return the ORDER BY clause for the order of the queue; `table` is the alias of the tasks, if any."""
    of = f"{table}." if table else ""
    return f"ORDER BY {of}priority DESC, {of}position, {of}id"


def is_before(one: str, other: str) -> str:
    """Return the SQL condition that the task with the alias `one` comes before the one with alias `other`."""
    left, right = (f"(-{of}.priority, {of}.position, {of}.id)" for of in (one, other))
    return f"{left} < {right}"


def position_before_all(now: datetime) -> int:
    """Return a position before all tasks of the same priority, even those moved to the front earlier."""
    return -int(now.timestamp() * 1_000_000)
