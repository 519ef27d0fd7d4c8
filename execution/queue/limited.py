"""The claim where the order of the queue does not say everything: limits, and seats that are reserved.

A look without locks comes first, so that a full limit costs those little who do not need it. Only if it
finds room are the limits locked, by key, and all is counted anew: what is counted under the lock holds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from django.db import connection, transaction

from database.statements import among, fetch, hidden, placeholders, write
from execution.models.limit import HELD, Limit
from execution.steps.step_type import Isolation

from .concurrency import SEPARATOR, Candidate, Room, choose
from .order import by_turn, turn
from .unlimited import (
    ISOLATION,
    READY,
    READY_LIMITED,
    RESERVED,
    Claimant,
    Row,
    Seats,
    claim_unlimited,
    ready,
    take,
)

MOST_SETS = 1_000
MOST_PASSED_OVER = 100
MOST_COUNTED = 100
# Each row: what it is about, limit keys, pool, isolation, a number; priority and position.
COUNTS = f"""
    SELECT 'limit' AS kind, key AS limit_keys, '' AS pool, '' AS isolation, size AS number,
        0 AS priority, 0 AS position FROM execution_limit
    UNION ALL SELECT 'held', limit_keys, pool, '', number, 0, 0 FROM ({HELD}) AS held
    UNION ALL SELECT 'reserved', limit_keys, pool, '', 1, 0, 0 FROM execution_reservation
        WHERE released_at IS NULL
    UNION ALL SELECT 'worker', CAST(pools AS text), '', '', seats, 0, 0 FROM execution_worker
        WHERE status = 'alive' AND EXISTS ({RESERVED})
"""
# From each set of keys (and isolation, and pool) to the next, however many tasks each of them has. SQLite
# would compare all of a set with the three of them: it gets another pool, another isolation, other keys.
FIRST_AFTER = (
    f"SELECT n.id FROM execution_workertask n WHERE {READY_LIMITED} AND {{}} "
    "ORDER BY limit_keys, isolation, pool LIMIT 1"
)
NEXT_SET = {
    "postgresql": FIRST_AFTER.format("(limit_keys, isolation, pool) > (s.limit_keys, s.isolation, s.pool)"),
    "sqlite": "SELECT COALESCE(({}), ({}), ({}))".format(
        FIRST_AFTER.format("limit_keys = s.limit_keys AND isolation = s.isolation AND pool > s.pool"),
        FIRST_AFTER.format("limit_keys = s.limit_keys AND isolation > s.isolation"),
        FIRST_AFTER.format("limit_keys > s.limit_keys"),
    ),
}
BEYOND = "AND (limit_keys, isolation, pool) > (%s, %s, %s)"
WAITING_IN_SETS = (
    "SELECT limit_keys, (SELECT count(*) FROM (SELECT 1 FROM execution_workertask n "
    f"WHERE {READY_LIMITED} AND n.limit_keys = s.limit_keys AND n.isolation = s.isolation "
    f"AND n.pool = s.pool LIMIT {MOST_COUNTED}) AS counted) FROM s LIMIT {MOST_SETS}"
)


class Group(NamedTuple):
    """Tasks that differ in nothing but their order. Those of a reserved pool may have no limit."""

    limit_keys: str
    isolation: Isolation
    pool: str
    is_limited: bool


@dataclass(frozen=True)
class Look:
    """What there is to know at one moment."""

    sizes: dict[str, int]
    # The keys of each reservation, by pool.
    reserved: dict[str, str]
    room: Room
    groups: tuple[Group, ...]
    candidates: tuple[Candidate, ...]

    @classmethod
    def around(cls, beyond: Group | None = None) -> Look:
        """All there is, or the next so many sets of keys."""
        found = f"SELECT 'set', limit_keys, pool, isolation, 0, 0, 0 FROM s LIMIT {MOST_SETS}"
        sql = f"{sets(BEYOND if beyond else '')} {COUNTS} UNION ALL SELECT * FROM ({found}) AS sets"
        return cls.of(fetch(sql, list(beyond[:3]) if beyond else []))

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Look:
        by_kind: dict[str, list[Row]] = defaultdict(list)
        for kind, *row in rows:
            by_kind[kind].append(row)
        sizes = {key: number for key, _, _, number, *_ in by_kind["limit"]}
        reserved = {pool: keys for keys, pool, *_ in by_kind["reserved"]}
        seats = _seats(reserved, sizes, [(json.loads(pools), n) for pools, _, _, n, *_ in by_kind["worker"]])
        held = [(keys, pool, n) for keys, pool, _, n, *_ in by_kind["held"] + by_kind["reserved"]]
        sets = [Group(keys, isolation, pool, True) for keys, pool, isolation, *_ in by_kind["set"]]
        of_reserved = [Group("", each, pool, False) for pool in seats for each in get_args(Isolation)]
        candidates = [
            Candidate(turn(priority, position, pk), isolation, keys, pool, kind == "head")
            for kind in ("head", "other")
            for keys, pool, isolation, pk, priority, position in by_kind[kind]
        ]
        room = Room.left(sizes, seats, held)
        return cls(sizes, reserved, room, (*sets, *of_reserved), tuple(candidates))

    @property
    def last_set(self) -> Group | None:
        """If there may be more of them."""
        found = [group for group in self.groups if group.is_limited]
        return found[-1] if len(found) >= MOST_SETS else None

    def open(self, pools: Sequence[str], isolations: Collection[Isolation]) -> list[Group]:
        """Those from which one more may run, and which this worker serves."""
        return [
            group
            for group in self.groups
            if group.isolation in isolations
            and (not pools or group.pool in pools)
            and self.room.fits(group.limit_keys, group.pool)
        ]


def _seats(
    reserved: Mapping[str, str], sizes: Mapping[str, int], workers: Sequence[tuple[list[str], int]]
) -> dict[str, int]:
    """Of the reserved pools that have no limit of their own: those of the workers that serve them."""
    return {
        pool: max(1, sum(seats for pools, seats in workers if not pools or pool in pools))
        for pool, keys in reserved.items()
        if f"pool:{pool}" not in sizes.keys() & set(keys.split(SEPARATOR))
    }


def claim_by_turn(by: Claimant, *, free: Seats, ahead: Seats) -> list[Row]:
    """The next in order that have room, whether anything limits them or not."""
    look, groups = _find_open(by.pools, free)
    if not groups:
        return _claim_others(by, _most(free, ahead))
    has_table = connection.in_atomic_block
    with transaction.atomic(savepoint=False):
        if any(size > 0 for size in free.values()):
            _hold(groups, look.reserved, has_table=has_table)
        rows, others = _claim_heads(by, groups, free, ahead)
        return rows + _claim_others(by, others)


def is_any_open(pools: Sequence[str], isolations: Collection[Isolation]) -> bool:
    """Whether a task that is limited, or of a reserved pool, could be claimed at this moment."""
    _, groups = _find_open(pools, isolations)
    return bool(groups) and bool(_look_closer(groups, {}, pools, most=1).candidates)


def _find_open(pools: Sequence[str], isolations: Collection[Isolation]) -> tuple[Look, list[Group]]:
    """However many sets are full, they do not hide one that has room."""
    look = Look.around()
    while not (groups := look.open(pools, isolations)) and (last := look.last_set):
        look = Look.around(beyond=last)
    return look, groups


def usage() -> dict[str, tuple[int, int]]:
    """Of each limit, how much is in use, and how many ready tasks have its key; the latter up to a point."""
    look = Look.of(fetch(COUNTS, []))
    waiting: Counter[str] = Counter()
    for limit_keys, count in fetch(f"{sets()} {WAITING_IN_SETS}", []):
        for key in limit_keys.split(SEPARATOR):
            waiting[key] = min(MOST_COUNTED, waiting[key] + count)
    return {key: (size - look.room.limits[key], waiting[key]) for key, size in look.sizes.items()}


def sets(beyond: str = "") -> str:
    """A list `s` of the different sets of keys that ready tasks have: as many steps as there are sets."""
    return f"""
        WITH RECURSIVE s(id, limit_keys, isolation, pool) AS (
            SELECT * FROM (SELECT id, limit_keys, isolation, pool FROM execution_workertask
                WHERE {READY_LIMITED} {beyond} ORDER BY limit_keys, isolation, pool LIMIT 1) AS first
            UNION ALL SELECT t.id, t.limit_keys, t.isolation, t.pool
            FROM s JOIN execution_workertask t ON t.id {found_in(NEXT_SET[connection.vendor])}
        )
    """


def found_in(chosen: str) -> str:
    """An array is looked up by key; PostgreSQL may prefer to join all of the queue with what is not one."""
    return f"= ANY(ARRAY({chosen}))" if connection.vendor == "postgresql" else f"IN ({chosen})"


def _claim_heads(
    by: Claimant, groups: Sequence[Group], free: Seats, ahead: Seats, passed_over: Sequence[int] = ()
) -> tuple[list[Row], Seats]:
    """What is chosen of these groups, and how many others go before the first that has to wait for a seat.

    If somebody is changing a row that was chosen, nobody waits for that: the next one is looked for.
    """
    seats = max(1, *free.values())
    look = _look_closer(groups, _most(free, ahead), by.pools, most=seats, passed_over=passed_over)
    choice = choose(look.candidates, look.room, free=free, ahead=ahead)
    rows = _take(by, choice.chosen)
    missed = set(choice.chosen) - {row[0] for row in rows}
    if not missed or len(passed_over) >= MOST_PASSED_OVER:
        return rows, choice.others
    taken = Counter(row[ISOLATION] for row in rows)
    left = {isolation: size - taken[isolation] for isolation, size in free.items()}
    more, others = _claim_heads(by, groups, left, ahead, [*passed_over, *missed])
    return rows + more, others


def _claim_others(by: Claimant, most: Seats) -> list[Row]:
    wanted = {isolation: size for isolation, size in most.items() if size > 0}
    return claim_unlimited(by, wanted, contested=True)[0] if wanted else []


def _take(by: Claimant, ids: Sequence[int]) -> list[Row]:
    if not ids:
        return []
    if connection.vendor != "postgresql":
        return take(by, *among("id", ids))
    these = f"id = {hidden('bigint')} AND status = 'queued' AND NOT is_delayed FOR UPDATE SKIP LOCKED"
    return take(by, f"id = ANY(ARRAY(SELECT id FROM execution_workertask WHERE {these}))", [list(ids)])


def _hold(groups: Sequence[Group], reserved: Collection[str], *, has_table: bool) -> None:
    """Who counts for these groups counts alone, until the transaction ends.

    The table comes first, as for those who make and remove limits; then limits, then reservations. Whoever
    is in a transaction has the table from the claim that found out that this is needed.
    """
    if connection.vendor == "postgresql":
        if not has_table:
            write("LOCK TABLE execution_workertask IN ROW EXCLUSIVE MODE", [])
        keys = {key for group in groups if group.is_limited for key in group.limit_keys.split(SEPARATOR)}
        Limit.objects.hold(keys)
        if pools := {group.pool for group in groups} & set(reserved):
            fetch(f"{RESERVED} AND pool = ANY(%s) ORDER BY pool FOR NO KEY UPDATE", [sorted(pools)])


def _look_closer(
    groups: Sequence[Group],
    others: Seats,
    pools: Sequence[str],
    *,
    most: int,
    passed_over: Sequence[int] = (),
) -> Look:
    """The counts, the first tasks of each of these groups, and the first of the others."""
    sql, params = [COUNTS], list[Any]()
    for is_limited, condition in ((True, f"{READY_LIMITED} AND n.limit_keys = g.limit_keys"), (False, READY)):
        if theirs := [group[:3] for group in groups if group.is_limited == is_limited]:
            listed, values = _listed(theirs)
            sql.append(_heads(listed, condition, tuple(passed_over)))
            params += [*values, most]
    columns = "'other', limit_keys, pool, isolation, id, priority, position"
    for isolation, size in others.items():
        if size > 0:
            sql.append(f"SELECT * FROM ({ready(len(pools), True, columns=columns)}) AS others")
            params += [isolation, *pools, size]
    return Look.of(fetch(" UNION ALL ".join(sql), params))


def _listed(groups: Sequence[Sequence[str]]) -> tuple[str, list[Any]]:
    if connection.vendor == "postgresql":
        arrays = [list(column) for column in zip(*groups, strict=True)]
        given = ", ".join(["(SELECT %s::text[])"] * len(arrays))
        return f"SELECT * FROM unnest({given}) AS g(limit_keys, isolation, pool)", arrays
    names = "column1 AS limit_keys, column2 AS isolation, column3 AS pool"
    values = [value for group in groups for value in group]
    return f"SELECT {names} FROM (VALUES {placeholders(groups)})", values


def _heads(listed: str, condition: str, passed_over: Sequence[int]) -> str:
    but = f"AND n.id NOT IN ({', '.join(map(str, passed_over))})" if passed_over else ""
    first = (
        f"SELECT n.id FROM execution_workertask n WHERE {condition} AND n.isolation = g.isolation "
        f"AND n.pool = g.pool {but} {by_turn('n')} LIMIT %s"
    )
    return (
        "SELECT 'head', t.limit_keys, t.pool, t.isolation, t.id, t.priority, t.position "
        f"FROM ({listed}) AS g JOIN execution_workertask t ON t.id {found_in(first)}"
    )


def _most(free: Seats, ahead: Seats) -> dict[Isolation, int]:
    return {isolation: size + ahead.get(isolation, 0) for isolation, size in free.items()}
