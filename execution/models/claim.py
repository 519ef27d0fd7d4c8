"""The claim, in the form that costs each database least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from activities.models import Activity
from activities.statements import fetch
from execution.steps.base import Isolation

from .attempt import Held

Row = Sequence[Any]
ACTIVITY, ISOLATION = Held.COLUMNS.index("activity_id"), Held.COLUMNS.index("isolation")
# Waits and retries whose time has come. Until then no claim has to read past them.
RIPE = (
    "SELECT id FROM execution_workertask WHERE status = 'queued' AND is_delayed AND available_at <= %s "
    "ORDER BY available_at LIMIT 1000"
)
RIPEN = "UPDATE execution_workertask SET is_delayed = FALSE"


def claim(
    worker_id: UUID, *, free: Mapping[Isolation, int], pools: Sequence[str], now: datetime
) -> list[Held]:
    """Ready tasks for the free seats of a living worker, and their activities begin."""
    claim_rows = _claim_together if connection.vendor == "postgresql" else _claim_in_turn
    claimed = [Held(row, now) for row in claim_rows(worker_id, free, pools, now)]
    return sorted(claimed, key=lambda held: held.turn)


def _claim_together(
    worker_id: UUID, free: Mapping[Isolation, int], pools: Sequence[str], now: datetime
) -> Sequence[Row]:
    """One statement, so that an idle worker answers within one round trip.

    What it finds to be delayed no longer is not part of the queue that it sees: that takes a second look.
    """
    params = [now, worker_id, now, *_picks(free, pools), worker_id, worker_id, now]
    found = fetch(_claim_statement("postgresql", len(free), len(pools)), params)
    ripe, begun, *_ = found[0]
    rows: list[Row] = [row for _, _, *row in found if row[0] is not None]
    if begun < len(rows):
        # A retry came back in the middle of the statement: its activity is younger than what that saw.
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=worker_id, now=now)
    if ripe:
        left = _left(free, rows)
        rows += _claim_together(worker_id, left, pools, now) if left else []
    return rows


def _claim_in_turn(
    worker_id: UUID, free: Mapping[Isolation, int], pools: Sequence[str], now: datetime
) -> Sequence[Row]:
    """SQLite changes one table per statement. A look comes first: it does not take the write lock."""
    own, at = worker_id.hex, connection.ops.adapt_datetimefield_value(now)
    params = _picks(free, pools)
    looks = f"SELECT EXISTS ({_any_ready(len(free), len(pools))}), EXISTS ({RIPE})"
    [(is_ready, is_ripe)] = fetch(looks, [*params, at])
    if not is_ready and not is_ripe:
        return []
    with transaction.atomic(savepoint=False):
        if is_ripe:
            fetch(f"{RIPEN} WHERE id IN ({RIPE}) RETURNING id", [at])
        rows = fetch(_claim_statement("sqlite", len(free), len(pools)), [own, at, *params, own])
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=worker_id, now=now)
    return rows


def _picks(free: Mapping[Isolation, int], pools: Sequence[str]) -> list[Any]:
    return [value for isolation, size in free.items() for value in (isolation, *pools, size)]


def _left(free: Mapping[Isolation, int], rows: Sequence[Row]) -> dict[Isolation, int]:
    taken = Counter(row[ISOLATION] for row in rows)
    return {isolation: size - taken[isolation] for isolation, size in free.items() if size > taken[isolation]}


@lru_cache(maxsize=64)
def _claim_statement(vendor: str, isolations: int, pools: int) -> str:
    if vendor == "postgresql":
        # An array is computed once; a plain IN may become a join that runs the LIMIT again for each row.
        pick = f"ARRAY({_ready(pools)} FOR UPDATE SKIP LOCKED)"
        chosen = f"= ANY({' || '.join([pick] * isolations)})"
    else:
        chosen = f"IN ({_any_ready(isolations, pools)})"
    columns = ", ".join(Held.COLUMNS)
    update = (
        "UPDATE execution_workertask SET status = 'processing', worker_id = %s, claimed_at = %s "
        f"WHERE id {chosen} AND status = 'queued' "
        "AND EXISTS (SELECT 1 FROM execution_worker w WHERE w.id = %s AND w.status = 'alive') "
        f"RETURNING {columns}"
    )
    if vendor != "postgresql":
        return update
    return (
        f"WITH ripe AS ({RIPEN} WHERE id = ANY(ARRAY({RIPE} FOR UPDATE SKIP LOCKED)) RETURNING id), "
        f"t AS ({update}), begun AS (UPDATE activities_activity a SET status = 'in_progress', "
        "worker_id = %s, executed_at = %s FROM t WHERE a.id = t.activity_id AND a.status = 'pending' "
        "RETURNING 1), "
        "r AS (SELECT (SELECT count(*) FROM ripe) AS ripe, (SELECT count(*) FROM begun) AS begun) "
        f"SELECT ripe, begun, {columns} FROM r LEFT JOIN t ON TRUE"
    )


def _any_ready(isolations: int, pools: int) -> str:
    return " UNION ALL ".join([f"SELECT id FROM ({_ready(pools)})"] * isolations)


def _ready(pools: int) -> str:
    in_pools = f"AND pool IN ({', '.join(['%s'] * pools)}) " if pools else ""
    return (
        "SELECT id FROM execution_workertask WHERE status = 'queued' AND NOT is_delayed AND NOT is_limited "
        "AND isolation = %s "
        f"{in_pools}ORDER BY priority DESC, position, id LIMIT %s"
    )
