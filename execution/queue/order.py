"""The order of the queue: the highest priority first, then the lowest position, then the oldest task.

Everything that finds the next tasks takes their order from here, and the indexes of WorkerTask end with it.
Which tasks are ready is said in `conditions.py`; `turns.py` lists all of the queue, with what has to wait.
"""

from __future__ import annotations

from datetime import datetime

from django.db.models import F

Turn = tuple[int, int, int]

FIELDS = ("-priority", "position", "pk")
"""For `order_by`."""
INDEXED = (F("priority").desc(), F("position"), F("id"))
"""For the end of an index."""


def turn(priority: int, position: int, pk: int) -> Turn:
    """Build what tasks in memory are sorted by."""
    return -priority, position, pk


def by_turn(table: str = "") -> str:
    """Write ORDER BY for the tasks of a table with this alias."""
    of = f"{table}." if table else ""
    return f"ORDER BY {of}priority DESC, {of}position, {of}id"


def is_before(one: str, other: str) -> str:
    """Write the condition under which the task of one alias goes before that of another."""
    left, right = (f"(-{of}.priority, {of}.position, {of}.id)" for of in (one, other))
    return f"{left} < {right}"


def position_before_all(now: datetime) -> int:
    """Go before all that was put to the front earlier, and so before all else of the same priority."""
    return -int(now.timestamp() * 1_000_000)
