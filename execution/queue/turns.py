"""List the queue in the order in which people read it, with the help of indexes, however long it is."""

from __future__ import annotations

from database.batched import Statement
from database.statements import fetch

from .conditions import READY, READY_LIMITED
from .order import by_turn, turn

MOST_COUNTED = 1_000
# Tasks with a limit are indexed by limit keys, not in queue order; beyond this number, they are not listed.
MOST_LIMITED = 5_000
# The states that people see: a queued task that waits for its time is delayed.
STATES = {
    "processing": "status = 'processing'",
    "queued": "status = 'queued' AND NOT is_delayed",
    "delayed": "is_delayed AND status = 'queued'",
    "waiting": "status = 'waiting' AND execution_id IS NOT NULL",
}
LIMITED = f"(SELECT * FROM execution_workertask WHERE {READY_LIMITED} LIMIT {MOST_LIMITED}) AS l"


def in_turn(state: str = "", *, pool: str = "", count: int) -> list[int]:
    """Return the ids of the first `count` tasks in this state and pool.

    If `state` is empty, tasks in all states are listed, state by state. If `pool` is empty, tasks of all
    pools are listed.
    """
    sources = [
        source
        for stage, name in enumerate(STATES)
        if state in ("", name)
        for source in _sources(stage, name, "AND pool = %s" if pool else "")
    ]
    sql = " UNION ALL ".join(f"SELECT * FROM ({source}) AS s{n}" for n, source in enumerate(sources))
    rows = fetch(sql, [*([pool] if pool else []), count] * len(sources))
    rows.sort(key=lambda row: (row[0], turn(*row[1:])))
    return [pk for *_, pk in rows[:count]]


def depths() -> Statement:
    """Return the query that counts the tasks in each state, in the order of STATES and up to MOST_COUNTED."""
    some = f"SELECT 1 FROM execution_workertask WHERE {{}} LIMIT {MOST_COUNTED}"
    each = [f"(SELECT count(*) FROM ({some.format(which)}) AS t)" for which in STATES.values()]
    return Statement(f"SELECT {', '.join(each)}", [], columns=len(each))


def _sources(stage: int, state: str, in_pool: str) -> list[str]:
    """Return queries that find the tasks in this state, each in the order of an index.

    The columns are (stage, priority, position, id).
    """
    found = f"SELECT {stage}, priority, position, id FROM execution_workertask WHERE"
    match state:
        case "queued":
            unlimited = [
                f"{found} {READY} AND isolation = '{isolation}' {in_pool} {by_turn()} LIMIT %s"
                for isolation in ("thread", "process")
            ]
            limited = f"SELECT {stage}, priority, position, id FROM {LIMITED} WHERE 1 = 1 {in_pool}"
            return [*unlimited, f"{limited} {by_turn()} LIMIT %s"]
        case "processing":
            order = "claimed_at, id"
        case "delayed":
            order = "available_at, id"
        case _:
            order = "execution_id, id"
    first = f"SELECT * FROM execution_workertask WHERE {STATES[state]} {in_pool} ORDER BY {order} LIMIT %s"
    return [f"SELECT {stage}, 0, ROW_NUMBER() OVER (ORDER BY {order}), id FROM ({first}) AS f"]
