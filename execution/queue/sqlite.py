"""The statements of the queue for SQLite, and how each is run.

An SQLite statement changes only one table, and one transaction writes at a time: rows are not locked, and
what a transaction has counted stays true until it ends. Lists are sent as JSON, so that one statement works
for lists of any length.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import transaction

from activities.models import Activity
from database.statements import fetch, naive, write_each
from execution.models.attempt import ClaimedTask
from execution.models.brief import brief
from execution.steps.step_type import Isolation

from .conditions import (
    ACTIVITY_COLUMNS,
    COLUMNS,
    COUNTS,
    IS_CONTESTED,
    IS_WORKER_ALIVE,
    PENDING,
    READY,
    READY_LIMITED,
    RESERVED,
    RIPE,
    TASK_COLUMNS,
    UNTRIED,
    in_pools,
    pool_params,
)
from .order import by_turn
from .request import (
    ACTIVITY,
    NOTHING_HANDED_OVER,
    ClaimRequest,
    HandOver,
    Row,
    SeatCounts,
    TaskGroup,
    UnlimitedClaim,
    by_kind,
    seat_params,
)

if TYPE_CHECKING:
    from execution.models.planned import Planned


def has_key(key: str) -> str:
    """Return the SQL condition that `key`, an SQL expression, is among a task's limit keys."""
    return f"instr(char(10) || limit_keys || char(10), char(10) || {key} || char(10)) > 0"


HAS_LIMIT = f"EXISTS (SELECT 1 FROM execution_limit l WHERE {has_key('l.key')})"


# Queueing --------------------------------------------------------------------------------------------------

ADD_ACTIVITY = f"""
    INSERT INTO activities_activity ({ACTIVITY_COLUMNS})
    VALUES (%(step_type)s, %(key)s, %(name)s, %(by_type)s, %(by_id)s, %(by_name)s, %(root_id)s, %(key_hex)s,
        %(step_index)s, %(line)s, %(now)s, {PENDING})
"""
ADD_TASK = f"""
    INSERT INTO execution_workertask ({TASK_COLUMNS})
    VALUES (%(key_hex)s, %(execution_id)s,
        (SELECT id FROM activities_activity WHERE task_key = %(key_hex)s AND attempt = 1),
        %(line)s, %(step_index)s, %(name)s, %(step)s, %(pool)s, %(isolation)s, %(status)s, %(priority)s,
        %(limit_keys)s, %(position)s, %(dedup_key)s, %(later_at)s IS NOT NULL,
        COALESCE(%(later_at)s, %(now)s),
        EXISTS (SELECT 1 FROM execution_limit
            WHERE instr(char(10) || %(limit_keys)s || char(10), char(10) || key || char(10))),
        %(now)s, {UNTRIED})
"""


def add(planned: Sequence[Planned], now: datetime) -> None:
    at = naive(now)
    with transaction.atomic(savepoint=False):
        write_each((ADD_ACTIVITY, ADD_TASK), [_values(each, at) for each in planned])


def _values(planned: Planned, now: str) -> dict[str, Any]:
    line, by, later_at = planned.line, planned.initiator, planned.later_at
    return {
        "step_type": line["step_type"],
        "key": line["key"],
        "key_hex": line["key"].replace("-", ""),
        "name": line["name"],
        "by_type": by.type,
        "by_id": by.id,
        "by_name": by.name,
        "status": planned.status,
        "execution_id": planned.execution_id,
        "root_id": planned.root_id,
        "step_index": line["index"],
        "line": line["line"],
        "step": json.dumps(brief(line)),
        "pool": line["pool"],
        "isolation": line["isolation"],
        "priority": line["priority"],
        "limit_keys": line["limit_keys"],
        "position": planned.position,
        "dedup_key": planned.dedup_key,
        "later_at": None if later_at is None else naive(later_at),
        "now": now,
    }


# Claiming --------------------------------------------------------------------------------------------------


def _claim(chosen: str) -> str:
    """Return the SQL that claims the chosen tasks if they are still queued and the worker is alive.

    `chosen` is an SQL condition.
    """
    return f"""
        UPDATE execution_workertask SET status = 'processing', worker_id = %(worker)s, claimed_at = %(now)s
        WHERE {chosen} AND status = 'queued' AND {IS_WORKER_ALIVE}
        RETURNING {COLUMNS}
    """


def first_ready(pools: int, isolations: tuple[Isolation, ...]) -> str:
    """Return a query for the ids of each isolation's first ready tasks without a limit or a reserved pool."""
    firsts = [
        f"""SELECT id FROM (
            SELECT id FROM execution_workertask
            WHERE {READY} AND isolation = '{isolation}' {in_pools(pools)} AND pool NOT IN ({RESERVED})
            {by_turn()} LIMIT %({isolation})s)"""
        for isolation in isolations
    ]
    return " UNION ALL ".join(firsts)


@cache
def look_statement(pools: int, isolations: tuple[Isolation, ...]) -> str:
    """Return a query that shows, without taking the write lock, whether there is anything to claim.

    Its columns: whether tasks are ready, whether delayed tasks have reached their time, and whether limits or
    reservations affect which task is next.
    """
    return f"SELECT EXISTS ({first_ready(pools, isolations)}), EXISTS ({RIPE}), {IS_CONTESTED}"


RIPEN = f"UPDATE execution_workertask SET is_delayed = FALSE WHERE id IN ({RIPE}) RETURNING id"


@cache
def claim_unlimited_statement(pools: int, isolations: tuple[Isolation, ...]) -> str:
    return _claim(f"id IN ({first_ready(pools, isolations)})")


@cache
def claim_uncontested_statement(pools: int, isolations: tuple[Isolation, ...]) -> str:
    """Return the statement that claims tasks without a limit if the transaction already has the write lock.

    `look_statement` need not run first. The statement claims nothing if delayed tasks have reached their
    time, or if limits or reservations affect which task is next.
    """
    return _claim(f"id IN ({first_ready(pools, isolations)}) AND NOT EXISTS ({RIPE}) AND NOT {IS_CONTESTED}")


CLAIM_IDS = _claim("id IN (SELECT value FROM json_each(%(ids)s))")


def claim_unlimited(
    by: ClaimRequest, most: SeatCounts, *, among_limited: bool, is_writing: bool
) -> UnlimitedClaim:
    shape = len(by.pools), tuple(most)
    params: dict[str, Any] = seat_params(most) | pool_params(by.pools)
    if is_writing and (rows := _take(by, claim_uncontested_statement(*shape), params)):
        return UnlimitedClaim(rows, is_contested=False)
    now = {"now": naive(by.now)}
    [(is_ready, is_ripe, is_contested)] = fetch(look_statement(*shape), {**params, **now})
    must_wait = is_contested and not among_limited
    if not is_ripe and (must_wait or not is_ready):
        return UnlimitedClaim([], bool(must_wait))
    with transaction.atomic(savepoint=False):
        if is_ripe:
            fetch(RIPEN, now)
            [(is_contested,)] = fetch(f"SELECT {IS_CONTESTED}", [])
        if is_contested and not among_limited:
            return UnlimitedClaim([], is_contested=True)
        return UnlimitedClaim(_take(by, claim_unlimited_statement(*shape), params), is_contested=False)


def claim_ids(by: ClaimRequest, ids: Sequence[int]) -> list[Row]:
    return _take(by, CLAIM_IDS, {"ids": json.dumps(ids)})


def _take(by: ClaimRequest, sql: str, params: Mapping[str, Any]) -> list[Row]:
    """Claim tasks, then begin their activities."""
    by.look_at_clock()
    rows: list[Row] = [*fetch(sql, {**params, "worker": by.worker_id.hex, "now": naive(by.now)})]
    if rows:
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=by.worker_id, now=by.now)
    return rows


def hand_over(by: ClaimRequest, group: TaskGroup, number: int) -> HandOver:
    """Hand over nothing: only one transaction writes at a time, so counting never waits for a lock."""
    return NOTHING_HANDED_OVER


# Counting, before a claim under limits ---------------------------------------------------------------------


SIZES = "SELECT key, size FROM execution_limit WHERE key IN (SELECT value FROM json_each(%(keys)s))"


def lock_for_claim(keys: Collection[str], pools: Collection[str], *, has_table: bool) -> None:
    """Lock nothing: only one transaction writes at a time, and it is this one."""


def lock_limits(keys: Collection[str]) -> dict[str, int]:
    return dict(fetch(SIZES, {"keys": json.dumps(sorted(keys))}))


def lock_reservations(pools: Collection[str]) -> None:
    """Lock nothing: only one transaction writes at a time, and it is this one."""


def lock_queue(*, milliseconds: int) -> None:
    """Lock nothing: only one transaction writes at a time, and it is this one."""


_NEXT = f"""
    SELECT n.id FROM execution_workertask n WHERE {READY_LIMITED} AND {{condition}}
    ORDER BY limit_keys, isolation, pool LIMIT 1
"""
# Given three columns at once, SQLite would compare all tasks of a group. So the query looks for another pool,
# then for another isolation, then for other keys.
_NEXT_POOL, _NEXT_ISOLATION, _NEXT_KEYS = (
    _NEXT.format(condition=condition)
    for condition in (
        "limit_keys = s.limit_keys AND isolation = s.isolation AND pool > s.pool",
        "limit_keys = s.limit_keys AND isolation > s.isolation",
        "limit_keys > s.limit_keys",
    )
)


def _sets(beyond: str = "") -> str:
    """Return the WITH clause that lists, as `s`, the groups of ready tasks with a limit.

    The clause steps from group to group on an index, however many tasks each group has. `beyond` is an
    additional condition for the first group.
    """
    return f"""
        WITH RECURSIVE s(id, limit_keys, isolation, pool) AS (
            SELECT * FROM (SELECT id, limit_keys, isolation, pool FROM execution_workertask
                WHERE {READY_LIMITED} {beyond} ORDER BY limit_keys, isolation, pool LIMIT 1) AS first
            UNION ALL SELECT t.id, t.limit_keys, t.isolation, t.pool
            FROM s JOIN execution_workertask t ON t.id IN (
                SELECT COALESCE(({_NEXT_POOL}), ({_NEXT_ISOLATION}), ({_NEXT_KEYS})))
        )
    """


SETS = _sets()
_LISTED_SETS = f"""
    {COUNTS} UNION ALL SELECT * FROM (
        SELECT 'set', limit_keys, pool, isolation, 0, 0, 0 FROM s LIMIT %(most)s) AS sets
"""
COUNT_GROUPS = f"{SETS} {_LISTED_SETS}"
COUNT_GROUPS_AFTER = f"""
    {_sets("AND (limit_keys, isolation, pool) > (%(limit_keys)s, %(isolation)s, %(pool)s)")} {_LISTED_SETS}
"""


def count_groups(after: TaskGroup | None, *, most: int) -> list[Row]:
    if after is None:
        return [*fetch(COUNT_GROUPS, {"most": most})]
    return [*fetch(COUNT_GROUPS_AFTER, after._asdict() | {"most": most})]


@cache
def first_tasks_statement(pools: int, kinds: tuple[str, ...], isolations: tuple[Isolation, ...]) -> str:
    """Return the query for COUNTS, the first tasks of each group, and the first tasks without a limit."""
    parts = [COUNTS, *(_first_of_groups(kind, _OF_KIND[kind]) for kind in kinds)]
    return " UNION ALL ".join([*parts, *(_first_others(isolation, pools) for isolation in isolations)])


_OF_KIND = {"limited": f"{READY_LIMITED} AND n.limit_keys = g.limit_keys", "unlimited": READY}


def _first_of_groups(kind: str, condition: str) -> str:
    return f"""
        SELECT 'head', t.limit_keys, t.pool, t.isolation, t.id, t.priority, t.position
        FROM (SELECT json_extract(value, '$[0]') AS limit_keys, json_extract(value, '$[1]') AS isolation,
            json_extract(value, '$[2]') AS pool FROM json_each(%({kind})s)) AS g
        JOIN execution_workertask t ON t.id IN (
            SELECT n.id FROM execution_workertask n
            WHERE {condition} AND n.isolation = g.isolation AND n.pool = g.pool
                AND n.id NOT IN (SELECT value FROM json_each(%(passed_over)s))
            {by_turn("n")} LIMIT %(seats)s)
    """


def _first_others(isolation: str, pools: int) -> str:
    return f"""
        SELECT * FROM (
            SELECT 'other', limit_keys, pool, isolation, id, priority, position FROM execution_workertask
            WHERE {READY} AND isolation = '{isolation}' {in_pools(pools)} AND pool NOT IN ({RESERVED})
            {by_turn()} LIMIT %({isolation})s) AS {isolation}
    """


def first_tasks(
    groups: Sequence[TaskGroup],
    *,
    seats: int,
    others: SeatCounts,
    pools: Sequence[str],
    passed_over: Sequence[int],
) -> list[Row]:
    isolations: tuple[Isolation, ...] = tuple(each for each, size in others.items() if size > 0)
    kinds = by_kind(groups)
    params: dict[str, Any] = {"seats": seats, "passed_over": json.dumps(passed_over)}
    params |= {kind: json.dumps([each[:3] for each in theirs]) for kind, theirs in kinds.items()}
    params |= seat_params(others) | pool_params(pools)
    return [*fetch(first_tasks_statement(len(pools), tuple(kinds), isolations), params)]


# Finishing -------------------------------------------------------------------------------------------------

# The fence: which of these tasks the worker still holds, by (id, attempt, worker). The ids alone come first,
# as SQLite would otherwise compare every row with a list of pairs.
_STILL_HELD = """
    id IN (SELECT json_extract(value, '$[0]') FROM json_each(%(held)s))
    AND (id, attempt) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
        FROM json_each(%(held)s))
    AND worker_id = %(worker)s AND status = 'processing'
"""
# `made_room` is not needed, as every commit wakes all workers. Whether a cancel was requested is checked in
# Python, because SQLite 3.40 evaluates IS NOT NULL wrongly after RETURNING.
_LET_GO = "id, cancel_requested_at, FALSE AS made_room, is_limited, limit_keys, isolation, pool"
DELETE_HELD = f"DELETE FROM execution_workertask WHERE {_STILL_HELD} RETURNING {_LET_GO}"
RELEASE_HELD = f"""
    UPDATE execution_workertask SET status = 'queued', worker_id = NULL, claimed_at = NULL
    WHERE {_STILL_HELD} AND cancel_requested_at IS NULL RETURNING {_LET_GO}
"""


def delete_held(tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
    return [*fetch(DELETE_HELD, _held_params(tasks, worker_id))]


def release_held(tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
    return [*fetch(RELEASE_HELD, _held_params(tasks, worker_id))]


def _held_params(tasks: Sequence[ClaimedTask], worker_id: UUID) -> dict[str, Any]:
    return {"held": json.dumps([(task.pk, task.attempt) for task in tasks]), "worker": worker_id.hex}
