"""How the lines of plans become tasks: many at once, as cheaply as each database can."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from django.db import connection, transaction

from activities.models import Activity, Initiator
from activities.statements import fetch, insert_each, planned_once
from execution.concurrency import SEPARATOR, limit_keys
from schedules.models import Step

AT_ONCE = 2_000
# What a task that was never tried looks like.
UNTRIED = {"attempt": 1, "failures": 0, "crashes": 0}
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
TASK_FIELDS = (
    "key",
    "execution",
    "line",
    "step_index",
    "name",
    "step",
    "pool",
    "isolation",
    "status",
    "priority",
    "limit_keys",
    "position",
    "dedup_key",
    "is_delayed",
    "available_at",
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
            self.line,
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

    def task(self, now: datetime) -> tuple[Any, ...]:
        line = self.line
        return (
            line["key"],
            self.execution_id,
            line["line"],
            line["index"],
            line["name"],
            line,
            line["pool"],
            line["isolation"],
            self.status,
            line["priority"],
            line["limit_keys"],
            self.position,
            self.dedup_key,
            self.later_at is not None,
            self.later_at or now,
        )


def add(planned: Sequence[Planned], *, now: datetime) -> None:
    """Tasks and the activities of their first attempts; workers hear of them."""
    add_some = _add_together if connection.vendor == "postgresql" else _add_in_turn
    for start in range(0, len(planned), AT_ONCE):
        add_some(planned[start : start + AT_ONCE], now)


def up_to_date(line: Mapping[str, Any]) -> dict[str, Any]:
    """With all that a line says now: it may have been planned when there was less to say."""
    whole = Step().as_json() | dict(line)
    return whole if "limit_keys" in whole else whole | {"limit_keys": limit_keys(whole)}


def _add_in_turn(planned: Sequence[Planned], now: datetime) -> None:
    from .task import WorkerTask

    with transaction.atomic(savepoint=False):
        activities = Activity.objects.add(
            ACTIVITY_FIELDS, [p.activity for p in planned], status=Activity.Status.PENDING, now=now
        )
        limited = {key for (key,) in fetch("SELECT key FROM execution_limit", [])}
        rows = [
            (*p.task(now), activity, not limited.isdisjoint(p.line["limit_keys"].split(SEPARATOR)))
            for p, activity in zip(planned, activities, strict=True)
        ]
        same = UNTRIED | {"created_at": now}
        insert_each(WorkerTask, (*TASK_FIELDS, "activity", "is_limited"), rows, same=same, returning="id")


def _add_together(planned: Sequence[Planned], now: datetime) -> None:
    """One statement and one round trip; its only parameter of any size is the lines of the plans."""
    names = tuple(GIVEN)
    given = json.dumps([dict(zip(names, p.given, strict=True)) for p in planned])
    activity = Activity.UNSAID | {"status": Activity.Status.PENDING, "created_at": now}
    task = UNTRIED | {"created_at": now}
    sql = _add_statement(tuple(activity), tuple(task))
    with planned_once():
        fetch(sql, [given, *activity.values(), now, *task.values()])


@cache
def _add_statement(activity: tuple[str, ...], task: tuple[str, ...]) -> str:
    return f"""
        WITH v AS (
            SELECT *, (step->>'key')::uuid AS key, (step->>'index')::int AS index,
                (step->>'line')::int AS line
            FROM ROWS FROM (json_to_recordset(%s) AS (
                {", ".join(f"{name} {kind}" for name, kind in GIVEN.items())}
            )) WITH ORDINALITY AS v({", ".join(GIVEN)}, number)
        ), a AS (
            INSERT INTO activities_activity (target_type, target_id, target_name, initiator_type,
                initiator_id, initiator_name, parent_id, task_key, step_index, line, {", ".join(activity)})
            SELECT step->>'step_type', step->>'key', step->>'name', by_type, by_id, by_name, root_id, key,
                index, line, {", ".join(["%s"] * len(activity))}
            FROM v ORDER BY number RETURNING id, task_key
        ), t AS (
            INSERT INTO execution_workertask (key, execution_id, activity_id, line, step_index, name, step,
                pool, isolation, status, priority, limit_keys, position, dedup_key, is_delayed, available_at,
                is_limited, {", ".join(task)})
            SELECT key, execution_id, a.id, line, index, step->>'name', step, step->>'pool',
                step->>'isolation', status, (step->>'priority')::int, step->>'limit_keys', position,
                dedup_key, later_at IS NOT NULL, COALESCE(later_at, %s),
                string_to_array(step->>'limit_keys', chr(10)) && ARRAY(SELECT key::text FROM execution_limit),
                {", ".join(["%s"] * len(task))}
            FROM v JOIN a ON a.task_key = v.key ORDER BY number RETURNING id
        )
        SELECT pg_notify('jim_tasks', '') FROM t LIMIT 1
    """
