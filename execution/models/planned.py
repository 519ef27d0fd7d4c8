"""How the lines of plans become tasks: many at once, as cheaply as each database can."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from django.db import OperationalError, connection, transaction

from activities.models import Activity
from database.statements import elements, naive, pipelined, placeholders, planned_once, write, write_each
from execution.queue.concurrency import limit_keys
from operations.initiator import Initiator
from schedules.models import Step

from .brief import UNSAID, brief, whole

AT_ONCE = 250
# What a task that was never tried looks like.
UNTRIED = {"attempt": 1, "failures": 0, "crashes": 0}
# And its activity.
PENDING = Activity.UNSAID | {"status": Activity.Status.PENDING.value}
ACTIVITY_FIELDS = (
    "target_type",
    "target_id",
    "target_name",
    "initiator_type",
    "initiator_id",
    "initiator_name",
    "parent",
    "task_key",
    "step_index",
    "line",
)
# What PostgreSQL is given of each; the rest it finds in the line.
GIVEN = {
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
# What SQLite is given of each, in the order of `Planned.row`.
ROW = (
    "step_type",
    "key",
    "key_hex",
    "name",
    "by_type",
    "by_id",
    "by_name",
    "status",
    "execution_id",
    "root_id",
    "step_index",
    "line",
    "step",
    "pool",
    "isolation",
    "priority",
    "limit_keys",
    "position",
    "dedup_key",
    "later_at",
    "now",
)


class Planned(NamedTuple):
    """A line of a plan (or a single job) that becomes a task."""

    line: dict[str, Any]
    initiator: Initiator
    status: str = "queued"
    execution_id: int | None = None
    root_id: int | None = None
    position: int = 0
    dedup_key: str = ""
    # Not before this time; None: at once.
    later_at: datetime | None = None

    @property
    def activity(self) -> tuple[Any, ...]:
        line, by = self.line, self.initiator
        return (
            line["step_type"],
            line["key"],
            line["name"],
            by.type,
            by.id,
            by.name,
            self.root_id,
            line["key"],
            line["index"],
            line["line"],
        )

    def ended(self, status: str, message: str, *, now: datetime, **fields: Any) -> Activity:
        """Its activity, if it does not have to run."""
        own = dict(zip(ACTIVITY_FIELDS, self.activity, strict=True))
        own["parent_id"] = own.pop("parent")
        return Activity(**own, status=status, message=message, created_at=now, finished_at=now, **fields)

    @property
    def given(self) -> tuple[Any, ...]:
        later_at = None if self.later_at is None else self.later_at.isoformat()
        by = self.initiator
        return (
            brief(self.line),
            by.type,
            by.id,
            by.name,
            self.status,
            self.execution_id,
            self.root_id,
            self.position,
            self.dedup_key,
            later_at,
        )

    def row(self, now: str) -> tuple[Any, ...]:
        line, by = self.line, self.initiator
        return (
            line["step_type"],
            line["key"],
            line["key"].replace("-", ""),
            line["name"],
            by.type,
            by.id,
            by.name,
            self.status,
            self.execution_id,
            self.root_id,
            line["index"],
            line["line"],
            json.dumps(brief(line)),
            line["pool"],
            line["isolation"],
            line["priority"],
            line["limit_keys"],
            self.position,
            self.dedup_key,
            None if self.later_at is None else naive(self.later_at),
            now,
        )


def add(planned: Iterable[Planned], *, now: datetime) -> None:
    """Tasks and the activities of their first attempts; workers hear of them. All of them, or none.

    While PostgreSQL writes some, the next ones are made. On SQLite nobody else could write meanwhile.
    """
    is_postgresql = connection.vendor == "postgresql"
    add_some = _add_together if is_postgresql else _add_in_turn
    every = iter(planned if is_postgresql else list(planned))
    some = list(islice(every, AT_ONCE))
    if len(some) < AT_ONCE:
        if some:
            add_some(some, now)
        return
    with transaction.atomic(), pipelined():
        while some:
            add_some(some, now)
            some = list(islice(every, AT_ONCE))


def new_key() -> UUID:
    """Version 7: keys of the same time are neighbours in an index, where random ones are all over it."""
    milliseconds, random = time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big")
    return UUID(int=milliseconds << 80 | 7 << 76 | (random >> 68) << 64 | 2 << 62 | random & (1 << 62) - 1)


def up_to_date(line: Mapping[str, Any]) -> dict[str, Any]:
    """With all that a line says now: it may have been planned when there was less to say."""
    told: dict[str, Any] = Step().as_json() | whole(line)
    return told if "limit_keys" in told else told | {"limit_keys": limit_keys(told)}


def _add_in_turn(planned: Sequence[Planned], now: datetime) -> None:
    """A single one is a single statement, and so its own transaction."""
    at = naive(now)
    rows = [p.row(at) for p in planned]
    with transaction.atomic(savepoint=False) if len(rows) > 1 else nullcontext():
        try:
            write_each(_ADD, rows)
        except OperationalError as error:
            if "no such table" not in str(error):
                raise
            _define_adding()
            write_each(_ADD, rows)


_ADD = f"INSERT INTO jim_planned VALUES {placeholders([ROW])}"


def _define_adding() -> None:
    """SQLite has no statement that writes to two tables; a trigger on a view of this connection's own does.

    One that were part of the schema would be in the way of migrations.
    """
    write(f"CREATE TEMP VIEW jim_planned AS SELECT {', '.join(f'NULL AS {name}' for name in ROW)}", [])
    write(
        f"""
        CREATE TEMP TRIGGER jim_add INSTEAD OF INSERT ON jim_planned BEGIN
            INSERT INTO activities_activity (target_type, target_id, target_name, initiator_type,
                initiator_id, initiator_name, parent_id, task_key, step_index, line, created_at,
                {", ".join(PENDING)})
            VALUES (new.step_type, new.key, new.name, new.by_type, new.by_id, new.by_name, new.root_id,
                new.key_hex, new.step_index, new.line, new.now, {_literals(PENDING)});
            INSERT INTO execution_workertask (key, execution_id, activity_id, line, step_index, name, step,
                pool, isolation, status, priority, limit_keys, position, dedup_key, is_delayed, available_at,
                is_limited, created_at, {", ".join(UNTRIED)})
            VALUES (new.key_hex, new.execution_id, last_insert_rowid(), new.line, new.step_index, new.name,
                new.step, new.pool, new.isolation, new.status, new.priority, new.limit_keys, new.position,
                new.dedup_key, new.later_at IS NOT NULL, COALESCE(new.later_at, new.now),
                EXISTS (SELECT 1 FROM execution_limit
                    WHERE instr(char(10) || new.limit_keys || char(10), char(10) || key || char(10))),
                new.now, {_literals(UNTRIED)});
        END
        """,
        [],
    )


def _literals(values: Mapping[str, Any]) -> str:
    """Numbers, texts without quotes, and truths: what stands in a statement need not be sent each time."""
    return ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in values.values())


def _add_together(planned: Sequence[Planned], now: datetime) -> None:
    """One statement and one round trip; its only parameter of any size is the lines of the plans."""
    given = json.dumps([p.given for p in planned])
    with planned_once():
        write(_add_statement(), [now, given])


def _said(name: str) -> str:
    """As text, what a brief line says, or means by not saying it; what is empty is refused by the column."""
    return f"CASE WHEN step ? '{name}' THEN step->>'{name}' ELSE '{UNSAID[name]}' END"


@cache
def _add_statement() -> str:
    return f"""
        WITH v AS (
            SELECT *, (step->>'key')::uuid AS key, (step->>'index')::int AS index,
                (step->>'line')::int AS line, %s::timestamptz AS now
            FROM (SELECT number, {elements(GIVEN)}
                FROM jsonb_array_elements(%s) WITH ORDINALITY AS given(x, number)) AS given
        ), a AS (
            INSERT INTO activities_activity (target_type, target_id, target_name, initiator_type,
                initiator_id, initiator_name, parent_id, task_key, step_index, line, created_at,
                {", ".join(PENDING)})
            SELECT step->>'step_type', step->>'key', step->>'name', by_type, by_id, by_name, root_id, key,
                index, line, now, {_literals(PENDING)}
            FROM v ORDER BY number RETURNING id, task_key
        ), t AS (
            INSERT INTO execution_workertask (key, execution_id, activity_id, line, step_index, name, step,
                pool, isolation, status, priority, limit_keys, position, dedup_key, is_delayed, available_at,
                is_limited, created_at, {", ".join(UNTRIED)})
            SELECT key, execution_id, a.id, line, index, step->>'name', step, {_said("pool")},
                step->>'isolation', status, ({_said("priority")})::int, step->>'limit_keys', position,
                dedup_key, later_at IS NOT NULL, COALESCE(later_at, now),
                string_to_array(step->>'limit_keys', chr(10)) && ARRAY(SELECT key::text FROM execution_limit),
                now, {_literals(UNTRIED)}
            FROM v JOIN a ON a.task_key = v.key ORDER BY number RETURNING id
        )
        SELECT pg_notify('jim_tasks', '') FROM t LIMIT 1
    """
