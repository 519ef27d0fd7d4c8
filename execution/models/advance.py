"""Advance executions: when a group has ended, start the next group or end the execution."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django.db import connection, transaction

from activities.models import Activity, Ending
from database import clock
from database.statements import among, fetch, hidden, update_each, write
from execution import failure

if TYPE_CHECKING:
    from .execution import Execution

# Move executions to their next groups in one round trip instead of three. As the ids of the executions are
# also given as an array, PostgreSQL plans well even for tables without statistics.
MOVE = f"""
    WITH v AS (
        SELECT (x->>0)::bigint AS id, (x->>1)::int AS current_index FROM jsonb_array_elements(%s) AS given(x)
    ), moved AS (
        UPDATE execution_execution e SET current_index = v.current_index FROM v WHERE e.id = v.id
    ), released AS (
        UPDATE execution_workertask t SET status = 'queued', available_at = %s FROM v
        WHERE t.execution_id = {hidden("bigint")} AND t.execution_id = v.id AND t.step_index = v.current_index
            AND t.status = 'waiting'
        RETURNING t.id
    )
    SELECT id FROM released
"""


class Standing(NamedTuple):
    """The state of an execution's tasks, from which it is decided how the execution continues.

    `is_live`: whether a task is queued or processing. `following`: the index of the first group with waiting
    tasks. `last`: if no task is queued or processing, the last attempt of each step in the current group, by
    line.
    """

    is_live: bool
    following: int | None
    last: dict[int | None, failure.Last]


def advance(model: type[Execution], executions: Iterable[Execution], *, now: datetime) -> list[int]:
    """Start the next group of each execution whose current group has ended, or end that execution.

    The executions must be locked. Return the ids of the tasks that are now queued.
    """
    running = [e for e in executions if e.status == model.Status.IN_PROGRESS]
    standings = _standings(running) if running else {}
    moving: list[Execution] = []
    ending: list[Execution] = []
    for execution in running:
        standing = standings[execution.pk]
        if not standing.is_live:
            is_over = _judge(execution, standing.last, standing.following)
            (ending if is_over else moving).append(execution)
    released = _move(model, moving, now=now) if moving else []
    _end(model, ending, now=now)
    return released


def _standings(executions: Sequence[Execution]) -> dict[int, Standing]:
    """Return a dict from execution id to the state of the execution's tasks, read with one query."""
    theirs, params = among("e.id", [e.pk for e in executions])
    tasks, _ = among("execution_id", [e.pk for e in executions])
    rows = fetch(
        "SELECT e.id, t.is_live, t.following, a.line, a.status, a.error FROM execution_execution e "
        "LEFT JOIN (SELECT execution_id, MAX(CASE WHEN status = 'waiting' THEN 0 ELSE 1 END) AS is_live, "
        "MIN(CASE WHEN status = 'waiting' THEN step_index END) AS following "
        f"FROM execution_workertask WHERE {tasks} GROUP BY execution_id) t ON t.execution_id = e.id "
        "LEFT JOIN activities_activity a ON a.parent_id = e.activity_id "
        "AND a.step_index = e.current_index AND COALESCE(t.is_live, 0) = 0 "
        f"WHERE {theirs} ORDER BY a.attempt",
        [*params, *params],
    )
    standings: dict[int, Standing] = {}
    for pk, is_live, following, line, status, error in rows:
        standing = standings.setdefault(pk, Standing(bool(is_live), following, {}))
        if status is not None:
            standing.last[line] = failure.Last(status, error)
    return standings


def _judge(execution: Execution, last: dict[int | None, failure.Last], waiting: int | None) -> bool:
    """Decide how this execution continues after its current group has ended; return True if it ends.

    `last` contains the last attempt of each step in the group. `waiting` is the index of the first group that
    still has tasks.
    """
    if execution.cancel_requested_at is not None:
        if waiting is not None:
            # The cancel has left only clean-up steps.
            execution.current_index = waiting
            return False
        execution.status = execution.Status.FAILED if execution.is_timed_out else execution.Status.CANCELLED
        execution.error = execution.cancel_reason
        return True
    try:
        following = _following(execution, last, waiting)
    except Exception as error:
        # A damaged plan ends its own execution, and does not affect the others in the batch.
        following = failure.Following(None, f"The plan cannot be read: {error!r}", execution.on_failure)
    execution.error, execution.closed = following.error, following.closed
    execution.on_failure = following.on_failure
    if following.index is None:
        execution.status = execution.Status.FAILED if execution.error else execution.Status.COMPLETED
        if not execution.error:
            _pass_kept(execution)
        return True
    execution.current_index = following.index
    return False


def _following(
    execution: Execution, last: dict[int | None, failure.Last], waiting: int | None
) -> failure.Following:
    plan = execution.plan["steps"]
    later = [s for s in plan if s["index"] > execution.current_index and not s.get("reused")]
    upcoming = min((step["index"] for step in later), default=None)
    if upcoming != waiting:
        lost = [step for step in later if step["index"] == upcoming]
        reason = failure.stopping_reason(execution.group(execution.current_index), last)
        return failure.Following(None, reason or failure.stopping_reason(lost, {}), execution.on_failure)
    return failure.following(
        plan, index=execution.current_index, last=last, error=execution.error, on_failure=execution.on_failure
    )


def _pass_kept(execution: Execution) -> None:
    """Set `current_index` to the last group, even if a retry reused the steps of that group."""
    kept = [step["index"] for step in execution.plan["steps"] if step.get("reused")]
    execution.current_index = max([execution.current_index, *kept])


def _move(model: type[Execution], executions: Sequence[Execution], *, now: datetime) -> list[int]:
    """Queue the tasks of each execution's next group; return the ids of these tasks."""
    if passed_over := [(e.pk, line) for e in executions for line in e.closed]:
        theirs, params = among("(execution_id, line)", passed_over)
        fetch(f"DELETE FROM execution_workertask WHERE {theirs} RETURNING id", params)
        _close(executions, now=now)
    failing = [(e.pk, e.error, e.on_failure) for e in executions if e.error]
    if failing:
        update_each(model, ("error", "on_failure"), failing)
    groups = [(e.pk, e.current_index) for e in executions]
    ids = [e.pk for e in executions]
    if connection.vendor == "postgresql":
        return [pk for (pk,) in fetch(MOVE, [json.dumps(groups), now, ids])]
    update_each(model, ("current_index",), groups)
    theirs, params = among("(execution_id, step_index)", groups)
    released = fetch(
        "UPDATE execution_workertask SET status = 'queued', available_at = %s "
        f"WHERE status = 'waiting' AND {theirs} RETURNING id",
        [connection.ops.adapt_datetimefield_value(now), *params],
    )
    return [pk for (pk,) in released]


def _close(executions: Sequence[Execution], *, now: datetime) -> None:
    """Close the activities of plan lines that do not run, with the reason."""
    lines: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for execution in executions:
        for line, ending in execution.closed.items():
            lines[ending].append((execution.activity_id, line))
    for (status, why), pairs in lines.items():
        Activity.objects.close_lines(pairs, status=status, message=why, now=now)


def _end(model: type[Execution], executions: list[Execution], *, now: datetime) -> None:
    if not executions:
        return
    _close(executions, now=now)
    theirs, params = among("execution_id", [e.pk for e in executions])
    write(f"DELETE FROM execution_workertask WHERE {theirs}", params)
    for status, why in (
        (model.Status.CANCELLED, "Not run: the execution was cancelled."),
        (model.Status.FAILED, failure.SOMETHING_FAILED),
    ):
        roots = [e.activity_id for e in executions if e.status == status and not e.closed]
        if roots:
            Activity.objects.filter(parent__in=roots).close(
                status=Activity.Status.CANCELLED, message=why, now=now
            )
    update_each(
        model,
        ("status", "current_index", "finished_at", "error"),
        [(e.pk, e.status, e.current_index, now, e.error) for e in executions],
        where="t.status = 'in_progress'",
    )
    _finish_roots(executions, now=now)
    ids = {e.schedule_id for e in executions if e.schedule_id is not None}
    if ids:
        transaction.on_commit(lambda: _settle_after(ids), robust=True)


def _finish_roots(executions: list[Execution], *, now: datetime) -> None:
    roots = [e.activity_id for e in executions if e.status == e.Status.COMPLETED]
    warned = _warned(roots) if roots else set()
    Activity.objects.finish(
        [
            Ending(e.activity_id, _root_status(e, e.activity_id in warned), now, e.started_at, error=e.error)
            for e in executions
        ]
    )


def _root_status(execution: Execution, warned: bool) -> str:
    if warned:
        return Activity.Status.COMPLETE_WITH_WARNING
    return execution.ROOT_STATUS[execution.Status(execution.status)]


def _warned(roots: Sequence[int]) -> set[int]:
    """Return those root activity ids under which the last attempt of some step failed or had warnings."""
    theirs, params = among("a.parent_id", roots)
    troubled = [*Activity.FAILURES, Activity.Status.COMPLETE_WITH_WARNING]
    rows = fetch(
        f"SELECT a.parent_id FROM activities_activity a WHERE {theirs} "
        f"AND a.status IN ({', '.join(['%s'] * len(troubled))}) "
        "AND NOT EXISTS (SELECT 1 FROM activities_activity r WHERE r.retry_of_id = a.id)",
        [*params, *troubled],
    )
    return {root for (root,) in rows}


def _settle_after(schedule_ids: set[int]) -> None:
    """Decide which waiting occurrences of these schedules start, now that an execution has ended.

    If this fails, the next tick of the scheduler decides.
    """
    from execution.loops.invoker import invoke_soon

    invoke_soon(schedule_ids, now=clock.now())
