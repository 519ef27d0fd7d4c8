"""The room that limits and reservations leave at one moment, and the groups of tasks that wait."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from database.statements import fetch
from execution.models.worker import seats_of, serves
from execution.steps.step_type import Isolation

from .concurrency import SEPARATOR, Candidate, Room
from .conditions import COUNTS, MOST_SETS, READY_LIMITED
from .dialect import dialect
from .order import turn
from .request import Row, SeatCounts, TaskGroup

MOST_COUNTED = 100
WAITING_IN_SETS = (
    "SELECT limit_keys, (SELECT count(*) FROM (SELECT 1 FROM execution_workertask n "
    f"WHERE {READY_LIMITED} AND n.limit_keys = s.limit_keys AND n.isolation = s.isolation "
    f"AND n.pool = s.pool LIMIT {MOST_COUNTED}) AS counted) FROM s LIMIT {MOST_SETS}"
)


@dataclass(frozen=True)
class Snapshot:
    """The limits, reservations and room at one moment, from the rows of a query that contains COUNTS.

    Groups of tasks with a limit, and candidates for a claim, are included only if the query lists them.
    """

    sizes: dict[str, int]
    # The limit keys of each reservation, by pool.
    reserved: dict[str, str]
    room: Room
    groups: tuple[TaskGroup, ...]
    candidates: tuple[Candidate, ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Snapshot:
        by_kind: dict[str, list[Row]] = defaultdict(list)
        for kind, *row in rows:
            by_kind[kind].append(row)
        sizes = {key: number for key, _, _, number, *_ in by_kind["limit"]}
        reserved = {pool: keys for keys, pool, *_ in by_kind["reserved"]}
        seats = _seats(reserved, sizes, [(json.loads(pools), n) for pools, _, _, n, *_ in by_kind["worker"]])
        held = [(keys, pool, n) for keys, pool, _, n, *_ in by_kind["held"] + by_kind["reserved"]]
        sets = [TaskGroup(keys, isolation, pool, True) for keys, pool, isolation, *_ in by_kind["set"]]
        of_reserved = [TaskGroup("", each, pool, False) for pool in seats for each in get_args(Isolation)]
        candidates = [
            Candidate(turn(priority, position, pk), isolation, keys, pool, kind == "head")
            for kind in ("head", "other")
            for keys, pool, isolation, pk, priority, position in by_kind[kind]
        ]
        room = Room.left(sizes, seats, held)
        return cls(sizes, reserved, room, (*sets, *of_reserved), tuple(candidates))

    @property
    def last_set(self) -> TaskGroup | None:
        """Return the last listed group with a limit if further groups may follow, otherwise None."""
        found = [group for group in self.groups if group.is_limited]
        return found[-1] if len(found) >= MOST_SETS else None

    def open_groups(self, pools: Sequence[str], isolations: Collection[Isolation]) -> list[TaskGroup]:
        """Return the groups with room for a task that a worker with these pools and isolations serves."""
        return [
            group
            for group in self.groups
            if group.isolation in isolations
            and serves(pools, group.pool)
            and self.room.fits(group.limit_keys, group.pool)
        ]


def _seats(
    reserved: Mapping[str, str], sizes: Mapping[str, int], workers: Sequence[tuple[list[str], int]]
) -> dict[str, int]:
    """Return a dict from each reserved pool without its own limit to its number of seats on all workers."""
    return {
        pool: seats_of(pool, workers)
        for pool, keys in reserved.items()
        if f"pool:{pool}" not in sizes.keys() & set(keys.split(SEPARATOR))
    }


class OpenGroups(list[TaskGroup]):
    """Groups that have room for one more task, and the pools that were reserved when they were found."""

    def __init__(self, groups: Sequence[TaskGroup], reserved: Collection[str]) -> None:
        super().__init__(groups)
        self.limit_keys = {
            key for each in groups if each.is_limited for key in each.limit_keys.split(SEPARATOR)
        }
        self.reserved_pools = {each.pool for each in groups} & set(reserved)


def find_open_groups(pools: Sequence[str], isolations: Collection[Isolation]) -> OpenGroups:
    """Find groups of tasks that have room, without locking anything.

    The groups are read in batches, up to the first batch that has a group with room.
    """
    snapshot = Snapshot.of(dialect().count_groups(None, most=MOST_SETS))
    while not (groups := snapshot.open_groups(pools, isolations)) and (last := snapshot.last_set):
        snapshot = Snapshot.of(dialect().count_groups(last, most=MOST_SETS))
    return OpenGroups(groups, snapshot.reserved)


def look_at_first(
    groups: Sequence[TaskGroup],
    *,
    seats: int,
    others: SeatCounts,
    pools: Sequence[str],
    passed_over: Sequence[int] = (),
) -> Snapshot:
    """Return a new snapshot of the tasks that could be claimed next.

    Its candidates are the first `seats` tasks of each group, except those in `passed_over`, and the first
    tasks without a limit; `others` says how many of these, by isolation.
    """
    rows = dialect().first_tasks(groups, seats=seats, others=others, pools=pools, passed_over=passed_over)
    return Snapshot.of(rows)


def is_any_open(pools: Sequence[str]) -> bool:
    """Return whether a task with a limit, or of a reserved pool, could be claimed at this moment."""
    groups = find_open_groups(pools, get_args(Isolation))
    return bool(groups) and bool(look_at_first(groups, seats=1, others={}, pools=pools).candidates)


def usage() -> dict[str, tuple[int, int]]:
    """Return, by limit key, how many slots are in use and how many ready tasks wait.

    The waiting tasks are counted up to MOST_COUNTED.
    """
    snapshot = Snapshot.of(fetch(COUNTS, []))
    waiting: Counter[str] = Counter()
    for limit_keys, count in fetch(f"{dialect().SETS} {WAITING_IN_SETS}", []):
        for key in limit_keys.split(SEPARATOR):
            waiting[key] = min(MOST_COUNTED, waiting[key] + count)
    return {key: (size - snapshot.room.limits[key], waiting[key]) for key, size in snapshot.sizes.items()}
