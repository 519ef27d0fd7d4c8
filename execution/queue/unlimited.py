"""The claim of what nobody limits, in the form that costs each database least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from activities.models import Activity
from database.statements import fetch
from execution.models.attempt import Held
from execution.steps.step_type import Isolation

from .order import by_turn

Row = Sequence[Any]
Seats = Mapping[Isolation, int]
ACTIVITY, ISOLATION = Held.COLUMNS.index("activity_id"), Held.COLUMNS.index("isolation")
COLUMNS = ", ".join(Held.COLUMNS)
# Waits and retries whose time has come. Until then no claim has to read past them.
RIPE = (
    "SELECT id FROM execution_workertask WHERE status = 'queued' AND is_delayed AND available_at <= %s "
    "ORDER BY available_at LIMIT 1000"
)
RIPEN = "UPDATE execution_workertask SET is_delayed = FALSE"
READY = "status = 'queued' AND NOT is_delayed AND NOT is_limited"
READY_LIMITED = "status = 'queued' AND NOT is_delayed AND is_limited"
RESERVED = "SELECT pool FROM execution_reservation WHERE released_at IS NULL"
# Found by their keys: an index of all that is pending looks cheap to a plan that is made while nothing is.
BEGIN = (
    "UPDATE activities_activity a SET status = 'in_progress', worker_id = %s, executed_at = %s "
    "WHERE a.id = ANY(ARRAY(SELECT activity_id FROM t)) AND a.status || '' = 'pending' RETURNING 1"
)
# Then it takes more than the order of the queue to say who is next. Two probes of an index.
IS_CONTESTED = f"(EXISTS (SELECT 1 FROM execution_workertask WHERE {READY_LIMITED}) OR EXISTS ({RESERVED}))"


@dataclass
class Claimant:
    """`now` is what the claim began with, and once it has taken something, when it took that."""

    worker_id: UUID
    pools: Sequence[str]
    now: datetime
    clock: Callable[[], datetime] | None = None

    def look_at_clock(self) -> None:
        """Call with the locks held, after counting: what was counted as free ended before this instant."""
        if self.clock is not None:
            self.now = self.clock()

    @property
    def stored_id(self) -> Any:
        return self.worker_id if connection.vendor == "postgresql" else self.worker_id.hex

    @property
    def stored_now(self) -> Any:
        return connection.ops.adapt_datetimefield_value(self.now)


def claim_unlimited(
    by: Claimant, most: Seats, *, contested: bool = False, at_once: bool = False
) -> tuple[list[Row], bool]:
    """Tasks that nobody limits; if anything ready is limited, or a pool is reserved, none of them but True.

    `contested`: that is known, and these seats are theirs, except for tasks of reserved pools. `at_once`: the
    caller is writing, and there is probably something.
    """
    if connection.vendor == "postgresql":
        return _claim_together(by, most, contested)
    rows = _claim_at_once(by, most) if at_once else []
    return (rows, False) if rows else _claim_in_turn(by, most, contested)


def _claim_together(by: Claimant, most: Seats, contested: bool) -> tuple[list[Row], bool]:
    """One statement, so that an idle worker answers within one round trip.

    What it finds to be delayed no longer is not part of the queue that it sees: that takes a second look.
    """
    params = [by.now, by.worker_id, by.now, *_picks(most, by.pools), by.worker_id, by.worker_id, by.now]
    found = fetch(_claim_statement(len(most), len(by.pools), contested), params)
    ripe, begun, is_contested, *_ = found[0]
    rows: list[Row] = [row for _, _, _, *row in found if row[0] is not None]
    if begun < len(rows):
        # A retry came back in the middle of the statement: its activity is younger than what that saw.
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=by.worker_id, now=by.now)
    left = _left(most, rows)
    if ripe and left and not is_contested:
        more, is_contested = _claim_together(by, left, contested)
        rows += more
    return rows, is_contested


def _claim_in_turn(by: Claimant, most: Seats, contested: bool) -> tuple[list[Row], bool]:
    """SQLite changes one table per statement. A look comes first: it does not take the write lock."""
    params, at = _picks(most, by.pools), by.stored_now
    any_ready = _any_ready(len(most), len(by.pools), contested)
    is_contested = "FALSE" if contested else IS_CONTESTED
    looks = f"EXISTS ({any_ready}), EXISTS ({RIPE}), {is_contested}"
    [(is_ready, is_ripe, must_wait)] = fetch(f"SELECT {looks}", [*params, at])
    if not is_ripe and (must_wait or not is_ready):
        return [], bool(must_wait)
    with transaction.atomic(savepoint=False):
        if is_ripe:
            fetch(f"{RIPEN} WHERE id IN ({RIPE}) RETURNING id", [at])
            [(must_wait,)] = fetch(f"SELECT {is_contested}", [])
        if must_wait:
            return [], True
        return take(by, f"id IN ({any_ready})", params), False


def _claim_at_once(by: Claimant, most: Seats) -> list[Row]:
    """Without a look, unless something is in the way that takes one."""
    any_ready = _any_ready(len(most), len(by.pools), contested=False)
    chosen = f"id IN ({any_ready}) AND NOT EXISTS ({RIPE}) AND NOT {IS_CONTESTED}"
    return take(by, chosen, [*_picks(most, by.pools), by.stored_now])


def take(by: Claimant, chosen: str, params: Sequence[Any]) -> list[Row]:
    """Claims what `chosen`, a condition on ids, is about; the activities begin."""
    by.look_at_clock()
    if connection.vendor == "postgresql":
        sql = f"WITH t AS ({update(chosen)}), begun AS ({BEGIN}) SELECT {COLUMNS} FROM t"
        return [*fetch(sql, [by.worker_id, by.now, *params, by.worker_id, by.worker_id, by.now])]
    rows: list[Row] = [*fetch(update(chosen), [by.stored_id, by.stored_now, *params, by.stored_id])]
    if rows:
        Activity.objects.begin([row[ACTIVITY] for row in rows], worker_id=by.worker_id, now=by.now)
    return rows


def _picks(most: Seats, pools: Sequence[str]) -> list[Any]:
    return [value for isolation, size in most.items() for value in (isolation, *pools, size)]


def _left(most: Seats, rows: Sequence[Row]) -> dict[Isolation, int]:
    taken = Counter(row[ISOLATION] for row in rows)
    return {isolation: size - taken[isolation] for isolation, size in most.items() if size > taken[isolation]}


@lru_cache(maxsize=64)
def _claim_statement(isolations: int, pools: int, contested: bool) -> str:
    unless = "" if contested else "AND NOT (SELECT is_contested FROM c) "
    # An array is computed once; a plain IN may become a join that runs the LIMIT again for each row.
    pick = f"ARRAY({ready(pools, contested, unless)} FOR UPDATE SKIP LOCKED)"
    chosen = update(f"id = ANY({' || '.join([pick] * isolations)})")
    return (
        f"WITH c AS MATERIALIZED (SELECT {'FALSE' if contested else IS_CONTESTED} AS is_contested), "
        f"ripe AS ({RIPEN} WHERE id = ANY(ARRAY({RIPE} FOR UPDATE SKIP LOCKED)) RETURNING id), "
        f"t AS ({chosen}), begun AS ({BEGIN}), "
        "r AS (SELECT (SELECT count(*) FROM ripe) AS ripe, (SELECT count(*) FROM begun) AS begun) "
        f"SELECT ripe, begun, is_contested, {COLUMNS} FROM r CROSS JOIN c LEFT JOIN t ON TRUE"
    )


def update(chosen: str) -> str:
    return (
        "UPDATE execution_workertask SET status = 'processing', worker_id = %s, claimed_at = %s "
        f"WHERE {chosen} AND status = 'queued' "
        "AND EXISTS (SELECT 1 FROM execution_worker w WHERE w.id = %s AND w.status = 'alive') "
        f"RETURNING {COLUMNS}"
    )


@lru_cache(maxsize=64)
def _any_ready(isolations: int, pools: int, contested: bool) -> str:
    return " UNION ALL ".join([f"SELECT id FROM ({ready(pools, contested)})"] * isolations)


def ready(pools: int, contested: bool, unless: str = "", *, columns: str = "id") -> str:
    """The first in order of one isolation, among the tasks that nobody limits."""
    in_pools = f"AND pool IN ({', '.join(['%s'] * pools)}) " if pools else ""
    unreserved = f"AND pool NOT IN ({RESERVED}) " if contested else ""
    return (
        f"SELECT {columns} FROM execution_workertask WHERE {READY} AND isolation = %s "
        f"{in_pools}{unreserved}{unless}{by_turn()} LIMIT %s"
    )
