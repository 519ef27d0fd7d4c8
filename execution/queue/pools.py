"""The current state of the pools: their tasks and workers, and how long tasks wait."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from database.statements import fetch, instant
from execution.models import Limit, Reservation, Worker
from execution.models.worker import serving

DEFAULT = "default"
# The most tasks that are counted: in a longer queue, the exact number does not matter.
MOST_COUNTED = 100_000
QUEUE = f"""
    SELECT pool, CASE WHEN status = 'queued' AND is_delayed THEN 'delayed' ELSE status END AS state,
        count(*), min(available_at)
    FROM (SELECT pool, status, is_delayed, available_at FROM execution_workertask LIMIT {MOST_COUNTED}) AS q
    GROUP BY 1, 2
"""


@dataclass
class Pool:
    name: str
    # The size of the pool's limit; None if it has none.
    limit: int | None = None
    # How many tasks its living workers can run at once. Workers that serve all pools count for each pool.
    seats: int = 0
    workers: int = 0
    # By state: queued, delayed (until a time), waiting (for steps before them), processing.
    tasks: Counter[str] = field(default_factory=Counter)
    # Since when the queued task that has waited longest has been ready.
    oldest_ready_at: datetime | None = None
    # The state of the pool's direct request, waiting or running; empty if there is none.
    reservation: str = ""

    def waits_for(self, now: datetime) -> float:
        """Return for how many seconds the oldest ready task has been waiting; 0 if no task is ready."""
        if self.oldest_ready_at is None:
            return 0.0
        return max(0.0, (now - self.oldest_ready_at).total_seconds())


def look(now: datetime) -> list[Pool]:
    """Return the default pool and all pools with workers, a limit, a reservation or tasks, sorted by name."""
    pools: dict[str, Pool] = defaultdict(lambda: Pool(""))
    for name, state, count, since in fetch(QUEUE, []):
        pools[name].tasks[state] = count
        if state == "queued":
            pools[name].oldest_ready_at = instant(since)
    limits = Limit.objects.filter(key__startswith="pool:")
    for key, size in limits.values_list("key", "size"):
        pools[key.removeprefix("pool:")].limit = size
    for reservation in Reservation.objects.live():
        pools[reservation.pool].reservation = reservation.state
    workers = list(Worker.objects.holding_leases(now).values_list("pools", "seats"))
    for name in (DEFAULT, *(name for names, _ in workers for name in names)):
        pools[name].name = name
    for name, pool in pools.items():
        pool.name = name
        seats = serving(name, workers)
        pool.seats, pool.workers = sum(seats), len(seats)
    return [pools[name] for name in sorted(pools)]
