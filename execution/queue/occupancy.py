"""The current use of limits and pools. A pool exists once a task, worker, limit or reservation names it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection

from database.statements import fetch
from execution.models import Limit
from execution.models.worker import HOLDS_LEASE, serving

from .concurrency import SEPARATOR, Room
from .conditions import HELD, MOST_SETS, READY, READY_LIMITED
from .dialect import dialect

DEFAULT = "default"
MOST_LIMITS = 500
MOST_COUNTED = 1_000
# Lists the pools with ready tasks by stepping from pool to pool on an index, however many tasks each has.
_POOLS = f"""
    p(pool) AS (
        SELECT * FROM (SELECT pool FROM execution_workertask WHERE {READY} ORDER BY pool LIMIT 1) AS first
        UNION ALL SELECT (SELECT n.pool FROM execution_workertask n
            WHERE {READY} AND n.pool > p.pool ORDER BY n.pool LIMIT 1) FROM p WHERE p.pool IS NOT NULL
    )
"""
_OF_SET = f"{READY_LIMITED} AND n.limit_keys = s.limit_keys AND n.isolation = s.isolation"
_COUNTED = (
    "(SELECT count(*) FROM (SELECT 1 FROM execution_workertask n WHERE {condition} AND n.pool = {of}.pool "
    f"LIMIT {MOST_COUNTED}) AS counted)"
)
# The columns are: kind, limit keys (or the pools of a worker), pool, a number, and a word.
_SEEN = f"""
    SELECT 'held' AS kind, limit_keys, pool, number, '' AS word FROM ({HELD}) AS held
    UNION ALL SELECT 'reserved', limit_keys, pool, CASE WHEN taken_at IS NULL THEN 0 ELSE 1 END, holder
        FROM execution_reservation WHERE released_at IS NULL
    UNION ALL SELECT 'worker', CAST(pools AS text), '', seats, ''
        FROM execution_worker WHERE {HOLDS_LEASE}
    UNION ALL SELECT 'ready', '', pool, {_COUNTED.format(condition=READY, of="p")}, ''
        FROM p WHERE pool IS NOT NULL
    UNION ALL SELECT * FROM (
        SELECT 'ready', limit_keys, pool, {_COUNTED.format(condition=_OF_SET, of="s")}, ''
        FROM s LIMIT {MOST_SETS}) AS limited
"""


@dataclass(frozen=True)
class Used:
    """A limit, and how many tasks with its key run or are ready (counted up to MOST_COUNTED)."""

    limit: Limit
    running: int
    waiting: int

    @property
    def is_full(self) -> bool:
        return self.running >= self.limit.size

    @property
    def is_counted(self) -> bool:
        return self.waiting < MOST_COUNTED


@dataclass(frozen=True)
class Served:
    """A pool, with its workers and seats, and its running and ready tasks."""

    name: str
    workers: int
    seats: int
    running: int
    ready: int
    """How many tasks could start now if there were room, counted up to MOST_COUNTED."""
    size: int | None
    """The number of tasks that the limit of this pool allows; None if the pool has no limit."""
    holder: str
    """The process that has reserved the pool's next seat, if any."""
    is_taken: bool
    """Whether the request that reserved the seat is already running."""

    @property
    def room(self) -> int:
        """Return how many tasks of this pool can run at the same time."""
        return self.seats if self.size is None else min(self.seats, self.size)

    @property
    def is_counted(self) -> bool:
        return self.ready < MOST_COUNTED


class Occupancy(NamedTuple):
    limits: list[Used]
    pools: list[Served]

    @classmethod
    def at(cls, now: datetime) -> Occupancy:
        """Read the occupancy in two queries, whose cost does not depend on the length of the queue."""
        limits = list(Limit.objects.order_by("key")[:MOST_LIMITS])
        at = {"now": connection.ops.adapt_datetimefield_value(now)}
        rows: dict[str, list[Any]] = defaultdict(list)
        for kind, *row in fetch(f"{dialect().SETS}, {_POOLS} {_SEEN}", at):
            rows[kind].append(row)
        return cls(_used(limits, rows), _pools({limit.key: limit.size for limit in limits}, rows))


def _used(limits: list[Limit], rows: dict[str, list[Any]]) -> list[Used]:
    sizes = {limit.key: limit.size for limit in limits}
    held = [(keys, pool, number) for keys, pool, number, _ in rows["held"]]
    reserved = [(keys, pool, 1) for keys, pool, *_ in rows["reserved"]]
    left = Room.left(sizes, {}, [*held, *reserved]).limits
    waiting: Counter[str] = Counter()
    for keys, _, number, _ in rows["ready"]:
        waiting.update(dict.fromkeys(keys.split(SEPARATOR), number))
    return [
        Used(limit, limit.size - left[limit.key], min(waiting[limit.key], MOST_COUNTED)) for limit in limits
    ]


def _pools(sizes: dict[str, int], rows: dict[str, list[Any]]) -> list[Served]:
    """Return the pools that have workers, tasks, a limit or a reservation, sorted by name."""
    workers = [(json.loads(names), seats) for names, _, seats, _ in rows["worker"]]
    reserved = {pool: (holder, bool(taken)) for _, pool, taken, holder in rows["reserved"]}
    running, ready = _summed(rows["held"]), _summed(rows["ready"])
    limited = {key.removeprefix("pool:") for key in sizes if key.startswith("pool:")}
    served = {name for names, _ in workers for name in names}
    found = []
    for name in sorted({DEFAULT, *served, *limited, *running, *ready, *reserved}):
        seats = serving(name, workers)
        own = (running[name], min(ready[name], MOST_COUNTED), sizes.get(f"pool:{name}"))
        found.append(Served(name, len(seats), sum(seats), *own, *reserved.get(name, ("", False))))
    return found


def _summed(rows: list[Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    for _, pool, number, _ in rows:
        found[pool] += number
    return found
