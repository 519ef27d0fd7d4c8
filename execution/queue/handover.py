"""The places that ended tasks had in their limits go to the next of their kind.

Nobody counts anew, and so nobody waits for a lock: in one transaction one task ends and the next begins, so
whoever counts meanwhile counts one of the two. The size of the limits holds as well: who changes it waits
for the transactions that have written to the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connection

from activities.models import Activity
from database.statements import fetch
from execution.models.limit import HELD, contains

from .concurrency import SEPARATOR
from .limited import Group
from .order import by_turn
from .unlimited import (
    ACTIVITY,
    BEGIN,
    COLUMNS,
    IS_CONTESTED,
    READY,
    READY_LIMITED,
    RESERVED,
    RIPE,
    Claimant,
    Row,
    Seats,
    take,
    update,
)

Freed = Mapping[Group, int]
# Of all that is limited. (SQLite would look for less, or more, than a kind among all that are of it.)
FIRST, LAST = (
    f"SELECT limit_keys, isolation, pool FROM execution_workertask WHERE {READY_LIMITED} "
    f"ORDER BY limit_keys {way}, isolation {way}, pool {way} LIMIT 1"
    for way in ("ASC", "DESC")
)
# If there is none of these, all that waits is of one kind, and nothing else can be next.
OTHERS = (
    f"SELECT 1 FROM execution_workertask WHERE {READY}",
    RESERVED,
    f"SELECT 1 FROM ({FIRST}) AS f WHERE (limit_keys, isolation, pool) <> (%s, %s, %s)",
    f"SELECT 1 FROM ({LAST}) AS l WHERE (limit_keys, isolation, pool) <> (%s, %s, %s)",
)
NEXT = (
    f"SELECT id FROM execution_workertask WHERE {READY_LIMITED} AND limit_keys = %s AND isolation = %s "
    f"AND pool = %s{{unless}} {by_turn()} LIMIT %s"
)


class HandedOver(NamedTuple):
    rows: list[Row]
    # Whatever was taken, nothing else could be.
    is_all: bool
    # As `claim_unlimited` would say, if that is known.
    is_contested: bool


def hand_over(by: Claimant, freed: Freed, *, free: Seats) -> HandedOver:
    """Part of the transaction that has ended so many tasks of each kind.

    Nothing unless they are of one kind, all that waits is of that kind, and what they left is all the room
    that there is: otherwise it takes a count under the locks of the limits to say who is next.
    """
    if len(freed) != 1:
        return HandedOver([], False, False)
    [(group, number)] = freed.items()
    if free.get(group.isolation, 0) < number or (by.pools and group.pool not in by.pools):
        return HandedOver([], False, False)
    keys = group.limit_keys.split(SEPARATOR)
    asked = [*group[:3], *group[:3], by.stored_now, *keys, number, by.stored_now]
    taken = [*group[:3], number]
    if connection.vendor == "postgresql":
        return _together(by, _statement(len(keys)), [*asked, by.worker_id, by.now, *taken])
    [(is_all, is_contested)] = fetch(f"{_held()} {_judgement(len(keys))}", asked)
    rows = take(by, f"id IN ({NEXT.format(unless='')})", taken) if is_all else []
    return HandedOver(rows, bool(is_all), bool(is_contested))


def _together(by: Claimant, sql: str, params: list[Any]) -> HandedOver:
    found = fetch(sql, [*params, by.worker_id, by.worker_id, by.now])
    begun, is_all, is_contested, *_ = found[0]
    rows: list[Row] = [row for _, _, _, *row in found if row[0] is not None]
    if begun < len(rows):
        # A retry came back in the middle of the statement: its activity is younger than what that saw.
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=by.worker_id, now=by.now)
    return HandedOver(rows, is_all, is_contested)


@lru_cache(maxsize=64)
def _statement(keys: int) -> str:
    pick = f"ARRAY({NEXT.format(unless=' AND (SELECT is_all FROM c)')} FOR UPDATE SKIP LOCKED)"
    return (
        f"{_held()}, c AS MATERIALIZED ({_judgement(keys)}), t AS ({update(f'id = ANY({pick})')}), "
        f"begun AS ({BEGIN}), b AS (SELECT count(*) AS begun FROM begun) "
        f"SELECT begun, is_all, is_contested, {COLUMNS} FROM b CROSS JOIN c LEFT JOIN t ON TRUE"
    )


def _held() -> str:
    return f"WITH held AS MATERIALIZED ({HELD})"


def _judgement(keys: int) -> str:
    """Whether these places are handed over; if not, whether it is known to be a case of limits."""
    nothing_else = " AND ".join(f"NOT EXISTS ({other})" for other in (*OTHERS, RIPE))
    used = f"COALESCE((SELECT sum(number) FROM held WHERE {contains('l.key')}), 0)"
    these = f"l.key IN ({', '.join(['%s'] * keys)})"
    room = f"(SELECT min(l.size - {used}) FROM execution_limit l WHERE {these})"
    return (
        f"SELECT {nothing_else} AND COALESCE({room} = %s, FALSE) AS is_all, "
        f"{IS_CONTESTED} AND NOT EXISTS ({RIPE}) AS is_contested"
    )
