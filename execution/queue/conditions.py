"""SQL conditions and column lists of the queue that are the same for both databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from activities.models import Activity
from execution.models.attempt import ClaimedTask

COLUMNS = ", ".join(ClaimedTask.COLUMNS)
# The most groups of tasks that one query lists.
MOST_SETS = 1_000
# The conditions for ready tasks without a limit, and with one. Each is, word for word, the condition of
# indexes of WorkerTask.
READY = "status = 'queued' AND NOT is_delayed AND NOT is_limited"
READY_LIMITED = "status = 'queued' AND NOT is_delayed AND is_limited"
# Delayed tasks whose time has come. They are not ready until a claim marks them as ready; before that, they
# cost other claims nothing.
RIPE = (
    "SELECT id FROM execution_workertask WHERE status = 'queued' AND is_delayed AND available_at <= %(now)s "
    "ORDER BY available_at LIMIT 1000"
)
RESERVED = "SELECT pool FROM execution_reservation WHERE released_at IS NULL"
# True if limits or reservations affect which task is next. The check takes two lookups in an index.
IS_CONTESTED = f"(EXISTS (SELECT 1 FROM execution_workertask WHERE {READY_LIMITED}) OR EXISTS ({RESERVED}))"
IS_WORKER_ALIVE = "EXISTS (SELECT 1 FROM execution_worker w WHERE w.id = %(worker)s AND w.status = 'alive')"
# The number of running tasks by limit keys and pool. A task counts until its end is committed, even if its
# worker is dead.
HELD = (
    "SELECT limit_keys, pool, count(*) AS number FROM execution_workertask "
    "WHERE status = 'processing' AND worker_id IS NOT NULL GROUP BY limit_keys, pool"
)
# Everything that room is counted from. The columns are: kind, limit keys (or the pools of a worker), pool,
# isolation, a number, priority and position.
COUNTS = f"""
    SELECT 'limit' AS kind, key AS limit_keys, '' AS pool, '' AS isolation, size AS number,
        0 AS priority, 0 AS position FROM execution_limit
    UNION ALL SELECT 'held', limit_keys, pool, '', number, 0, 0 FROM ({HELD}) AS held
    UNION ALL SELECT 'reserved', limit_keys, pool, '', 1, 0, 0 FROM execution_reservation
        WHERE released_at IS NULL
    UNION ALL SELECT 'worker', CAST(pools AS text), '', '', seats, 0, 0 FROM execution_worker
        WHERE status = 'alive' AND EXISTS ({RESERVED})
"""


def in_pools(pools: int) -> str:
    """Return the SQL condition for a task in one of `pools` pools, whose names are %(pool_0)s, %(pool_1)s …

    If `pools` is 0, return an empty string, because a worker without pools serves all pools.

    The names form a list, not an array: only then does PostgreSQL read a single pool in the order of its
    index.
    """
    return f"AND pool IN ({', '.join(f'%(pool_{n})s' for n in range(pools))})" if pools else ""


def pool_params(pools: Sequence[str]) -> dict[str, str]:
    return {f"pool_{n}": pool for n, pool in enumerate(pools)}


def _literals(values: Mapping[str, Any]) -> str:
    """Return constants as SQL literals, so that they are not sent with each statement.

    Strings must not contain quotes.
    """
    return ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in values.values())


# The values of a task that was never tried, and of its activity.
_PENDING = Activity.UNSAID | {"status": Activity.Status.PENDING.value}
_UNTRIED = {"attempt": 1, "failures": 0, "crashes": 0}
PENDING, UNTRIED = _literals(_PENDING), _literals(_UNTRIED)
ACTIVITY_COLUMNS = (
    "target_type, target_id, target_name, initiator_type, initiator_id, initiator_name, parent_id, "
    f"task_key, step_index, line, created_at, {', '.join(_PENDING)}"
)
TASK_COLUMNS = (
    "key, execution_id, activity_id, line, step_index, name, step, pool, isolation, status, priority, "
    "limit_keys, position, dedup_key, is_delayed, available_at, is_limited, created_at, "
    f"{', '.join(_UNTRIED)}"
)
