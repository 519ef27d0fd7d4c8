"""The statements of the queue for PostgreSQL, and how each is run.

Three things recur in them:

- `id = ANY(ARRAY(SELECT …))`: the list is computed once and its rows are looked up by key. A plain IN can
  become a join that runs the LIMIT again for each row, or reads the whole queue.
- `ANY(ARRAY(SELECT unnest(…)))`: this hides the length of the array from PostgreSQL, which would otherwise
  consider a new plan for one or two rows cheaper than the plan in its cache, and plan again each time.
- `FOR UPDATE SKIP LOCKED`: rows that another transaction is changing are skipped, not waited for.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from activities.models import Activity
from database.statements import elements, fetch, planned_once, write
from execution.models.attempt import ClaimedTask
from execution.models.brief import UNSAID, brief
from execution.steps.step_type import Isolation

from .concurrency import SEPARATOR
from .conditions import (
    ACTIVITY_COLUMNS,
    COLUMNS,
    COUNTS,
    HELD,
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
    GROUP_COLUMNS,
    ISOLATION,
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

HAS_LIMIT = "string_to_array(limit_keys, chr(10)) && ARRAY(SELECT key::text FROM execution_limit)"


def has_key(key: str) -> str:
    """Return the SQL condition that `key`, an SQL expression, is among a task's limit keys."""
    return f"strpos(chr(10) || limit_keys || chr(10), chr(10) || {key} || chr(10)) > 0"


# Queueing --------------------------------------------------------------------------------------------------

# The values that are sent for each task, as an array; all other values are in its plan line.
_SENT = {
    "step": "jsonb",
    "by_type": "text",
    "by_id": "text",
    "by_name": "text",
    "status": "text",
    "execution_id": "bigint",
    "root_id": "bigint",
    "position": "bigint",
    "dedup_key": "text",
    "later_at": "timestamptz",
}


def _said(name: str) -> str:
    """Return the SQL for this value of a plan line, or for its default in lines that leave the value out.

    Without the default, the value would be NULL, which the column does not allow.
    """
    return f"CASE WHEN step ? '{name}' THEN step->>'{name}' ELSE '{UNSAID[name]}' END"


# Insert tasks and their activities, in the order in which they were sent, and wake the workers.
ADD = f"""
    WITH v AS (
        SELECT *, (step->>'key')::uuid AS key, (step->>'index')::int AS index,
            (step->>'line')::int AS line, %(now)s::timestamptz AS now
        FROM (SELECT number, {elements(_SENT)}
            FROM jsonb_array_elements(%(tasks)s) WITH ORDINALITY AS sent(x, number)) AS sent
    ), a AS (
        INSERT INTO activities_activity ({ACTIVITY_COLUMNS})
        SELECT step->>'step_type', step->>'key', step->>'name', by_type, by_id, by_name, root_id, key,
            index, line, now, {PENDING}
        FROM v ORDER BY number RETURNING id, task_key
    ), t AS (
        INSERT INTO execution_workertask ({TASK_COLUMNS})
        SELECT key, execution_id, a.id, line, index, step->>'name', step, {_said("pool")},
            step->>'isolation', status, ({_said("priority")})::int, step->>'limit_keys', position,
            dedup_key, later_at IS NOT NULL, COALESCE(later_at, now),
            string_to_array(step->>'limit_keys', chr(10)) && ARRAY(SELECT key::text FROM execution_limit),
            now, {UNTRIED}
        FROM v JOIN a ON a.task_key = v.key ORDER BY number RETURNING id
    )
    SELECT pg_notify('jim_tasks', '') FROM t LIMIT 1
"""


def add(planned: Sequence[Planned], now: datetime) -> None:
    with planned_once():
        write(ADD, {"now": now, "tasks": json.dumps([_sent(each) for each in planned])})


def _sent(planned: Planned) -> tuple[Any, ...]:
    by, later_at = planned.initiator, planned.later_at
    return (
        brief(planned.line),
        by.type,
        by.id,
        by.name,
        planned.status,
        planned.execution_id,
        planned.root_id,
        planned.position,
        planned.dedup_key,
        None if later_at is None else later_at.isoformat(),
    )


# Claiming --------------------------------------------------------------------------------------------------

# Begin the activities of the tasks that the same statement has claimed. `status || ''` keeps PostgreSQL from
# using the index of pending activities, which looks cheap if the plan is made while nothing is pending.
_BEGIN = """
    UPDATE activities_activity a SET status = 'in_progress', worker_id = %(worker)s, executed_at = %(now)s
    WHERE a.id = ANY(ARRAY(SELECT activity_id FROM claimed)) AND a.status || '' = 'pending' RETURNING 1
"""


def _claim(chosen: str) -> str:
    """Return the SQL that claims the chosen tasks if they are still queued and the worker is alive.

    `chosen` is the SQL for an array of task ids.
    """
    return f"""
        UPDATE execution_workertask SET status = 'processing', worker_id = %(worker)s, claimed_at = %(now)s
        WHERE id = ANY({chosen}) AND status = 'queued' AND {IS_WORKER_ALIVE}
        RETURNING {COLUMNS}
    """


@cache
def claim_unlimited_statement(pools: int, isolations: tuple[Isolation, ...], among_limited: bool) -> str:
    """Return the statement that claims tasks without a limit, in one round trip to the database.

    The statement marks delayed tasks whose time has come as ready, claims the first ready tasks of each
    isolation, and begins their activities. Tasks in reserved pools are not claimed. If limits or
    reservations affect which task is next, other tasks are claimed only if `among_limited` is true.
    """
    unless = f"pool NOT IN ({RESERVED})" if among_limited else "NOT (SELECT is_contested FROM contested)"
    firsts = [
        f"""ARRAY(
            SELECT id FROM execution_workertask
            WHERE {READY} AND isolation = '{isolation}' {in_pools(pools)} AND {unless}
            {by_turn()} LIMIT %({isolation})s FOR UPDATE SKIP LOCKED)"""
        for isolation in isolations
    ]
    return f"""
        WITH contested AS MATERIALIZED (SELECT {"FALSE" if among_limited else IS_CONTESTED} AS is_contested),
        ripened AS (
            UPDATE execution_workertask SET is_delayed = FALSE
            WHERE id = ANY(ARRAY({RIPE} FOR UPDATE SKIP LOCKED)) RETURNING id
        ),
        claimed AS ({_claim(" || ".join(firsts))}),
        begun AS ({_BEGIN}),
        counts AS (SELECT (SELECT count(*) FROM ripened) AS ripened, (SELECT count(*) FROM begun) AS begun)
        SELECT ripened, begun, is_contested, {COLUMNS}
        FROM counts CROSS JOIN contested LEFT JOIN claimed ON TRUE
    """


def claim_unlimited(
    by: ClaimRequest, most: SeatCounts, *, among_limited: bool, is_writing: bool
) -> UnlimitedClaim:
    """Claim tasks without a limit. If delayed tasks were marked as ready, claim again to get them as well."""
    sql = claim_unlimited_statement(len(by.pools), tuple(most), among_limited)
    found = fetch(sql, _params(by) | pool_params(by.pools) | seat_params(most))
    ripened, begun, is_contested, *_ = found[0]
    rows = _begun(by, [row for _, _, _, *row in found if row[0] is not None], begun)
    taken = Counter(row[ISOLATION] for row in rows)
    left: SeatCounts = {each: size - taken[each] for each, size in most.items() if size > taken[each]}
    if ripened and left and not is_contested:
        more = claim_unlimited(by, left, among_limited=among_limited, is_writing=is_writing)
        return UnlimitedClaim(rows + more.rows, more.is_contested)
    return UnlimitedClaim(rows, is_contested)


def _begun(by: ClaimRequest, rows: list[Row], begun: int) -> list[Row]:
    if begun < len(rows):
        # A retry was queued while the statement ran: its activity is too new for the statement to see.
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=by.worker_id, now=by.now)
    return rows


# Claim tasks that were chosen under the locks of their limits.
_CHOSEN = """
    SELECT id FROM execution_workertask
    WHERE id = ANY(ARRAY(SELECT unnest(%(ids)s::bigint[]))) AND status = 'queued' AND NOT is_delayed
    FOR UPDATE SKIP LOCKED
"""
CLAIM_IDS = f"""
    WITH claimed AS ({_claim(f"ARRAY({_CHOSEN})")}), begun AS ({_BEGIN})
    SELECT {COLUMNS} FROM claimed
"""


def claim_ids(by: ClaimRequest, ids: Sequence[int]) -> list[Row]:
    by.look_at_clock()
    return [*fetch(CLAIM_IDS, _params(by) | {"ids": list(ids)})]


def _params(by: ClaimRequest) -> dict[str, Any]:
    return {"worker": by.worker_id, "now": by.now}


# The next tasks of a group take the places that its ended tasks had in their limits (decision 0029). As this
# is part of the transaction that ended them, it needs no lock: other transactions count either the ended
# tasks or the new ones. `is_all` is true only if nothing else is ready, nothing is reserved, and the limits
# have exactly this much room; otherwise, a count under the locks of the limits has to find the next tasks.
_FIRST, _LAST = (
    f"SELECT limit_keys, isolation, pool FROM execution_workertask WHERE {READY_LIMITED} "
    f"ORDER BY limit_keys {way}, isolation {way}, pool {way} LIMIT 1"
    for way in ("ASC", "DESC")
)
_OF_GROUP = "(limit_keys, isolation, pool) = (%(limit_keys)s, %(isolation)s, %(pool)s)"
_NEXT_OF_GROUP = f"""
    SELECT id FROM execution_workertask
    WHERE {READY_LIMITED} AND limit_keys = %(limit_keys)s AND isolation = %(isolation)s
        AND pool = %(pool)s AND (SELECT is_all FROM judgement)
    {by_turn()} LIMIT %(number)s FOR UPDATE SKIP LOCKED
"""
HAND_OVER = f"""
    WITH held AS MATERIALIZED ({HELD}),
    judgement AS MATERIALIZED (
        SELECT NOT EXISTS (SELECT 1 FROM execution_workertask WHERE {READY})
            AND NOT EXISTS ({RESERVED})
            AND NOT EXISTS ({RIPE})
            AND NOT EXISTS (SELECT 1 FROM ({_FIRST}) AS first WHERE NOT {_OF_GROUP})
            AND NOT EXISTS (SELECT 1 FROM ({_LAST}) AS last WHERE NOT {_OF_GROUP})
            AND COALESCE((
                SELECT min(l.size - COALESCE((SELECT sum(number) FROM held WHERE {has_key("l.key")}), 0))
                FROM execution_limit l WHERE l.key = ANY(ARRAY(SELECT unnest(%(keys)s::text[])))
            ) = %(number)s, FALSE) AS is_all,
            {IS_CONTESTED} AND NOT EXISTS ({RIPE}) AS is_contested
    ),
    claimed AS ({_claim(f"ARRAY({_NEXT_OF_GROUP})")}),
    begun AS ({_BEGIN}),
    counts AS (SELECT count(*) AS begun FROM begun)
    SELECT begun, is_all, is_contested, {COLUMNS}
    FROM counts CROSS JOIN judgement LEFT JOIN claimed ON TRUE
"""


def hand_over(by: ClaimRequest, group: TaskGroup, number: int) -> HandOver:
    of_group = {"limit_keys": group.limit_keys, "isolation": group.isolation, "pool": group.pool}
    keys = group.limit_keys.split(SEPARATOR)
    found = fetch(HAND_OVER, _params(by) | of_group | {"keys": keys, "number": number})
    begun, is_all, is_contested, *_ = found[0]
    rows = _begun(by, [row for _, _, _, *row in found if row[0] is not None], begun)
    return HandOver(rows, is_all, is_contested)


# Counting, before a claim under limits ---------------------------------------------------------------------

# The table is locked first, as when limits are created or deleted; then limits, then reservations, by name.
LOCK_TABLE = "LOCK TABLE execution_workertask IN ROW EXCLUSIVE MODE"
LOCK_LIMITS = """
    SELECT key, size FROM execution_limit WHERE key = ANY(ARRAY(SELECT unnest(%(keys)s::text[])))
    ORDER BY key FOR NO KEY UPDATE
"""
LOCK_RESERVATIONS = f"{RESERVED} AND pool = ANY(%(pools)s) ORDER BY pool FOR NO KEY UPDATE"


def lock_for_claim(keys: Collection[str], pools: Collection[str], *, has_table: bool) -> None:
    if not has_table:
        write(LOCK_TABLE, [])
    lock_limits(keys)
    if pools:
        lock_reservations(pools)


def lock_limits(keys: Collection[str]) -> dict[str, int]:
    return dict(fetch(LOCK_LIMITS, {"keys": sorted(keys)}))


def lock_reservations(pools: Collection[str]) -> None:
    fetch(LOCK_RESERVATIONS, {"pools": sorted(pools)})


def lock_queue(*, milliseconds: int) -> None:
    write(f"SET LOCAL lock_timeout = {milliseconds}", [])
    write("LOCK TABLE execution_workertask IN EXCLUSIVE MODE", [])


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
            FROM s JOIN execution_workertask t ON t.id = ANY(ARRAY(
                SELECT n.id FROM execution_workertask n
                WHERE {READY_LIMITED} AND (limit_keys, isolation, pool) > (s.limit_keys, s.isolation, s.pool)
                ORDER BY limit_keys, isolation, pool LIMIT 1))
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
    columns = ", ".join(f"(SELECT %({kind}_{name})s::text[])" for name in GROUP_COLUMNS)
    return f"""
        SELECT 'head', t.limit_keys, t.pool, t.isolation, t.id, t.priority, t.position
        FROM (SELECT * FROM unnest({columns}) AS g(limit_keys, isolation, pool)) AS g
        JOIN execution_workertask t ON t.id = ANY(ARRAY(
            SELECT n.id FROM execution_workertask n
            WHERE {condition} AND n.isolation = g.isolation AND n.pool = g.pool
                AND n.id <> ALL(%(passed_over)s::bigint[])
            {by_turn("n")} LIMIT %(seats)s))
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
    params: dict[str, Any] = {"seats": seats, "passed_over": list(passed_over)}
    params |= seat_params(others) | pool_params(pools)
    kinds = by_kind(groups)
    for kind, theirs in kinds.items():
        params |= {f"{kind}_{name}": [getattr(each, name) for each in theirs] for name in GROUP_COLUMNS}
    return [*fetch(first_tasks_statement(len(pools), tuple(kinds), isolations), params)]


# Finishing -------------------------------------------------------------------------------------------------

# The fence: which of these tasks the worker still holds, by (id, attempt, worker). The rows are locked in id
# order, as everywhere; a plain IN would lock them in any order.
_STILL_HELD = """
    id = ANY(ARRAY(
        SELECT id FROM execution_workertask
        WHERE (id, attempt) IN (SELECT * FROM unnest((SELECT %s::bigint[]), (SELECT %s::bigint[])))
            AND worker_id = %s AND status = 'processing' {unless}
        ORDER BY id FOR UPDATE))
"""
# `made_room`: other tasks may have waited for the end of this one.
_LET_GO = (
    f"id, cancel_requested_at, is_limited OR pool IN ({RESERVED}) AS made_room, "
    "is_limited, limit_keys, isolation, pool"
)
DELETE_HELD = f"DELETE FROM execution_workertask WHERE {_STILL_HELD.format(unless='')} RETURNING {_LET_GO}"
# The same for `Activity.objects.finish_those`, which ends the activities in the same statement.
DELETE_HELD_BY_ACTIVITY = (
    f"DELETE FROM execution_workertask WHERE {_STILL_HELD.format(unless='')} "
    f"RETURNING activity_id AS pk, {_LET_GO}"
)
RELEASE_HELD = f"""
    UPDATE execution_workertask SET status = 'queued', worker_id = NULL, claimed_at = NULL
    WHERE {_STILL_HELD.format(unless="AND cancel_requested_at IS NULL")} RETURNING {_LET_GO}
"""


def held_params(tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Any]:
    return [[task.pk for task in tasks], [task.attempt for task in tasks], worker_id]


def delete_held(tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
    return [*fetch(DELETE_HELD, held_params(tasks, worker_id))]


def release_held(tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
    return [*fetch(RELEASE_HELD, held_params(tasks, worker_id))]
