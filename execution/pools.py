"""Where tasks are queued, and who is there to run them: pools exist by being named."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from activities.statements import fetch

from .models import Limit, Reservation, Worker
from .models.limit import HELD
from .models.limited import MOST_SETS, sets
from .models.unlimited import READY, READY_LIMITED

DEFAULT = "default"
MOST_COUNTED = 1_000
_COUNTED = (
    "(SELECT count(*) FROM (SELECT 1 FROM execution_workertask n WHERE {condition} AND n.pool = {of}.pool "
    f"LIMIT {MOST_COUNTED}) AS counted)"
)
# From each pool to the next, however many tasks each of them has.
_UNLIMITED = f"""
    WITH RECURSIVE p(pool) AS (
        SELECT * FROM (SELECT pool FROM execution_workertask WHERE {READY} ORDER BY pool LIMIT 1) AS first
        UNION ALL SELECT (SELECT n.pool FROM execution_workertask n
            WHERE {READY} AND n.pool > p.pool ORDER BY n.pool LIMIT 1) FROM p WHERE p.pool IS NOT NULL
    ) SELECT pool, {_COUNTED.format(condition=READY, of="p")} FROM p WHERE pool IS NOT NULL
"""
_OF_SET = f"{READY_LIMITED} AND n.limit_keys = s.limit_keys AND n.isolation = s.isolation"


@dataclass(frozen=True)
class Pool:
    name: str
    workers: int
    seats: int
    running: int
    ready: int
    """What could start at once if there were room; counted up to a point."""
    size: int | None
    """Of its own limit, if it has one."""
    reservation: Reservation | None

    @property
    def is_served(self) -> bool:
        return self.workers > 0

    @property
    def room(self) -> int:
        """How many of it can run at once."""
        return self.seats if self.size is None else min(self.seats, self.size)


def pools() -> list[Pool]:
    """All that workers serve, tasks are in, limits or requests are about; by name."""
    serving = list(Worker.objects.alive().values_list("pools", "seats"))
    running, ready = _running(), _ready()
    sizes = dict(Limit.objects.filter(key__startswith="pool:").values_list("key", "size"))
    reserved = {each.pool: each for each in Reservation.objects.live().select_related("activity")}
    named = {name for names, _ in serving for name in names} | {key.removeprefix("pool:") for key in sizes}
    return [
        Pool(
            name,
            workers=sum(1 for names, _ in serving if not names or name in names),
            seats=sum(seats for names, seats in serving if not names or name in names),
            running=running[name],
            ready=ready[name],
            size=sizes.get(f"pool:{name}"),
            reservation=reserved.get(name),
        )
        for name in sorted({DEFAULT, *named, *running, *ready, *reserved})
    ]


def _running() -> Counter[str]:
    return _summed((pool, count) for _, pool, count in fetch(HELD, []))


def _ready() -> Counter[str]:
    counted = _COUNTED.format(condition=_OF_SET, of="s")
    limited = fetch(f"{sets()} SELECT pool, {counted} FROM s LIMIT {MOST_SETS}", [])
    return _summed([*fetch(_UNLIMITED, []), *limited])


def _summed(rows: Iterable[tuple[str, int]]) -> Counter[str]:
    found: dict[str, int] = defaultdict(int)
    for pool, count in rows:
        found[pool] += count
    return Counter(found)
