"""How the lines of plans become tasks: many at once, as cheaply as each database can."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from django.db import connection, transaction

from activities.models import Activity, Initiator
from activities.statements import fetch, insert_each, planned_once

AT_ONCE = 2_000
# What a task that was never tried looks like.
UNTRIED = {"is_delayed": False, "priority": 0, "position": 0, "attempt": 1, "failures": 0, "crashes": 0}
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
)


class Planned(NamedTuple):
    """A line of a plan (or a single job) that becomes a task."""

    line: dict[str, Any]
    initiator: Initiator
    status: str = "queued"
    execution_id: int | None = None
    root_id: int | None = None

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

    @property
    def task(self) -> tuple[Any, ...]:
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
        )


def add(planned: Sequence[Planned], *, now: datetime) -> None:
    """Tasks and the activities of their first attempts; workers hear of them."""
    add_some = _add_together if connection.vendor == "postgresql" else _add_in_turn
    for start in range(0, len(planned), AT_ONCE):
        add_some(planned[start : start + AT_ONCE], now)


def _add_in_turn(planned: Sequence[Planned], now: datetime) -> None:
    from .task import WorkerTask

    with transaction.atomic(savepoint=False):
        activities = Activity.objects.add(
            ACTIVITY_FIELDS, [p.activity for p in planned], status=Activity.Status.PENDING, now=now
        )
        rows = [(*p.task, activity) for p, activity in zip(planned, activities, strict=True)]
        same = UNTRIED | {"available_at": now, "created_at": now}
        insert_each(WorkerTask, (*TASK_FIELDS, "activity"), rows, same=same, returning="id")


def _add_together(planned: Sequence[Planned], now: datetime) -> None:
    """One statement and one round trip; its only parameter of any size is the lines of the plans."""
    rows = [(p.line, *astuple(p.initiator), p.status, p.execution_id, p.root_id) for p in planned]
    names = ("step", "by_type", "by_id", "by_name", "status", "execution_id", "root_id")
    given = json.dumps([dict(zip(names, row, strict=True)) for row in rows])
    activity = Activity.UNSAID | {"status": Activity.Status.PENDING, "created_at": now}
    task = UNTRIED | {"available_at": now, "created_at": now}
    sql = _add_statement(tuple(activity), tuple(task))
    with planned_once():
        fetch(sql, [given, *activity.values(), *task.values()])


@cache
def _add_statement(activity: tuple[str, ...], task: tuple[str, ...]) -> str:
    return f"""
        WITH v AS (
            SELECT *, (step->>'key')::uuid AS key, (step->>'index')::int AS index,
                (step->>'line')::int AS line
            FROM ROWS FROM (json_to_recordset(%s) AS (
                step jsonb, by_type text, by_id text, by_name text, status text, execution_id bigint,
                root_id bigint
            )) WITH ORDINALITY AS v(step, by_type, by_id, by_name, status, execution_id, root_id, number)
        ), a AS (
            INSERT INTO activities_activity (target_type, target_id, target_name, initiator_type,
                initiator_id, initiator_name, parent_id, task_key, step_index, line, {", ".join(activity)})
            SELECT step->>'step_type', step->>'key', step->>'name', by_type, by_id, by_name, root_id, key,
                index, line, {", ".join(["%s"] * len(activity))}
            FROM v ORDER BY number RETURNING id, task_key
        ), t AS (
            INSERT INTO execution_workertask (key, execution_id, activity_id, line, step_index, name, step,
                pool, isolation, status, {", ".join(task)})
            SELECT key, execution_id, a.id, line, index, step->>'name', step, step->>'pool',
                step->>'isolation', status, {", ".join(["%s"] * len(task))}
            FROM v JOIN a ON a.task_key = v.key ORDER BY number RETURNING id
        )
        SELECT pg_notify('jim_tasks', '') FROM t LIMIT 1
    """
