"""Explain why tasks do not run yet, or where they run. For a page of tasks, this takes one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from activities.models import Activity
from database.batched import Question, Statement, together
from database.statements import among
from execution.models import Execution, Worker, WorkerTask
from execution.models.worker import serves
from execution.retry import Budget
from text.words import distance, here, span

from .concurrency import SEPARATOR
from .conditions import COUNTS, READY, READY_LIMITED
from .order import by_turn, is_before
from .snapshot import Snapshot

MOST_BEFORE = 100
MOST_NAMED = 3
MOST_HOLDERS = 1_000
# The most specific limit is the most helpful reason.
PARTICULAR = ("resource:", "type:", "pool:", "global")


def reasons(tasks: Sequence[WorkerTask], *, now: datetime) -> dict[int, str]:
    """Return, by task id, why each task is not running yet or, if it is running, where.

    The tasks must be loaded with their worker and execution.
    """
    waits = Waits.of(tasks, now=now)
    return waits.told(*together(*waits.questions))


@dataclass(frozen=True)
class Waits:
    """The questions to ask the database to find out why tasks wait, and the meaning of the answers."""

    by_status: Mapping[str, Sequence[WorkerTask]]
    now: datetime

    @classmethod
    def of(cls, tasks: Sequence[WorkerTask], *, now: datetime) -> Waits:
        by_status: dict[str, list[WorkerTask]] = {name: [] for name in ("later", *WorkerTask.Status.values)}
        for task in tasks:
            is_later = task.status == "queued" and task.is_delayed and task.available_at > now
            by_status["later" if is_later else task.status].append(task)
        return cls(by_status, now)

    @property
    def questions(self) -> list[Question]:
        ready = self.by_status["queued"]
        return [*_about_waiting(self.by_status["waiting"]), *(_about_ready(ready, self.now) if ready else ())]

    def told(self, groups: list[Any], live: list[Any], *about_ready: list[Any]) -> dict[int, str]:
        """Return the reason for each task, by task id, given the answers to the questions."""
        found = {task.pk: _runs(task, self.now) for task in self.by_status["processing"]}
        found |= {task.pk: _later(task, self.now) for task in self.by_status["later"]}
        found |= _waiting(self.by_status["waiting"], groups, live)
        return found | (_ready(self.by_status["queued"], *about_ready) if about_ready else {})


def _runs(task: WorkerTask, now: datetime) -> str:
    asked = ", asked to stop" if task.cancel_requested_at else ""
    since = span(now - task.claimed_at) if task.claimed_at else "a moment"
    return f"running on {task.worker} for {since}{asked}"


def _later(task: WorkerTask, now: datetime) -> str:
    if task.begun_at is not None:
        return f"postponed: continues {distance(task.available_at, now=now)}"
    if task.failures or task.crashes:
        most = Budget.of(task.failures, task.crashes, task.step).max_retries + 1
        return f"retry {distance(task.available_at, now=now)} (attempt {task.failures + 1} of {most})"
    if task.available_at - now < timedelta(days=1):
        return f"delayed: starts {distance(task.available_at, now=now)}"
    return f"delayed until {here(task.available_at)}"


def _about_waiting(tasks: Sequence[WorkerTask]) -> list[Question]:
    """Return two questions: the groups of the tasks' executions, and their queued or running tasks."""
    executions = [task.execution for task in tasks if task.execution is not None]
    roots = {each.activity_id for each in executions}
    groups = Activity.objects.filter(parent__in=roots, step_index__isnull=False).order_by()
    before = WorkerTask.objects.live().filter(execution__in={each.pk for each in executions}).order_by("pk")
    return [
        groups.values_list("parent", "step_index").distinct(),
        before.values_list("execution", "name", "status")[:MOST_HOLDERS],
    ]


def _waiting(tasks: Sequence[WorkerTask], groups: list[Any], before: list[Any]) -> dict[int, str]:
    indexes: dict[int, list[int]] = defaultdict(list)
    for parent, index in groups:
        indexes[parent].append(index or 0)
    live: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for execution_id, name, status in before:
        live[execution_id].append((name, status))
    return {task.pk: _behind(task.execution, indexes, live) for task in tasks}


def _behind(
    execution: Execution | None,
    indexes: Mapping[int, list[int]],
    live: Mapping[int, list[tuple[str, str]]],
) -> str:
    if execution is None:
        return "waiting for the steps before it"
    theirs, before = indexes[execution.activity_id], live[execution.pk]
    reached = sum(index <= execution.current_index for index in theirs)
    is_running = any(status == "processing" for _, status in before)
    names = _named([f"“{name}”" for name, _ in before])
    how = f"group {reached} of {len(theirs)} is {'running' if is_running else 'queued'}"
    return f"{how}: {names}" if names else how


def _about_ready(tasks: Sequence[WorkerTask], now: datetime) -> list[Question]:
    """Return four questions: pools served, room, running tasks with a limit, and tasks ahead of each."""
    running = WorkerTask.objects.processing().filter(is_limited=True).order_by("claimed_at", "pk")
    return [
        Worker.objects.holding_leases(now).values_list("pools", flat=True),
        Statement(COUNTS, [], columns=7),
        running.values_list("limit_keys", "name", "execution")[:MOST_HOLDERS],
        _before([task.pk for task in tasks]),
    ]


def _ready(
    tasks: Sequence[WorkerTask],
    serving: list[list[str]],
    counts: list[Any],
    running: list[Any],
    before: list[Any],
) -> dict[int, str]:
    """Return, by task id, what keeps each ready task from starting.

    Of several reasons, the one that will probably last longest is returned.
    """
    holders, places, found = Holders(Snapshot.of(counts), running), dict(before), {}
    for task in tasks:
        if not any(serves(pools, task.pool) for pools in serving):
            found[task.pk] = f"no running worker serves pool {task.pool}"
        else:
            found[task.pk] = holders.reason(task) or _for_a_seat(places.get(task.pk, 0))
    return found


def _for_a_seat(before: int) -> str:
    if not before:
        return "waiting for a free seat: this task is next"
    if before >= MOST_BEFORE:
        return f"waiting for a free seat: {MOST_BEFORE} or more tasks are ahead"
    return f"waiting for a free seat: {before} {'task is' if before == 1 else 'tasks are'} ahead"


class Holders:
    """The tasks and direct requests that hold the slots and seats that other tasks wait for."""

    def __init__(self, snapshot: Snapshot, running: Iterable[tuple[str, str, int | None]]) -> None:
        self.snapshot = snapshot
        self.running = [(set(keys.split(SEPARATOR)), name, execution) for keys, name, execution in running]

    def reason(self, task: WorkerTask) -> str:
        """Return why a limit or a reservation keeps this task from starting; empty if none does."""
        keys = task.limit_keys.split(SEPARATOR)
        full = [key for key in keys if self.snapshot.room.limits.get(key, 1) <= 0]
        if full:
            return self._full(min(full, key=_particular))
        return (
            ""
            if self.snapshot.room.pools.get(task.pool, 1) > 0
            else "waiting for a direct request, which runs first"
        )

    def _full(self, key: str) -> str:
        size = self.snapshot.sizes[key]
        if size == 0:
            return f"{_called(key)} is closed: the limit is set to 0"
        holding = [_holder(name, execution) for keys, name, execution in self.running if key in keys]
        requests = sum(key in keys.split(SEPARATOR) for keys in self.snapshot.reserved.values())
        if len(holding) < size and requests:
            return "waiting for a direct request, which runs first"
        held = _named([*holding, *["a direct request"] * requests])
        return f"{_called(key)} is full: {len(holding) + requests} of {size} in use by {held}"


def _particular(key: str) -> int:
    """Return the rank of a limit key as the reason for a wait: the full limit with the lowest rank is shown.

    Keys of a custom policy come first.
    """
    return next((place for place, start in enumerate(PARTICULAR, 1) if key.startswith(start)), 0)


def _called(key: str) -> str:
    if key == "global":
        return "the global limit"
    kind, _, name = key.partition(":")
    return f"{kind} {name}" if kind in ("pool", "type") else f"limit {key}"


def _holder(name: str, execution: int | None) -> str:
    return f"job “{name}”" if execution is None else f"execution {execution}"


def _named(names: Iterable[str]) -> str:
    """Join the first names, without duplicates, and say how many more there are."""
    different = list(dict.fromkeys(names))
    rest = len(different) - MOST_NAMED
    return ", ".join(different[:MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _before(ids: Sequence[int]) -> Statement:
    """Return the query that counts, up to MOST_BEFORE, how many ready tasks are ahead of each task.

    Only tasks that compete for the same seats and limits are counted.
    """
    these, params = among("t.id", ids)
    alike = "b.pool = t.pool AND b.isolation = t.isolation"
    sql = f"""
        SELECT t.id, CASE WHEN t.is_limited
            THEN ({_count(f"{READY_LIMITED} AND {alike} AND b.limit_keys = t.limit_keys")})
            ELSE ({_count(f"{READY} AND {alike}")}) END
        FROM execution_workertask t WHERE {these}
    """
    return Statement(sql, params, columns=2)


def _count(condition: str) -> str:
    first = (
        f"SELECT id, priority, position FROM execution_workertask b WHERE {condition} "
        f"{by_turn()} LIMIT {MOST_BEFORE}"
    )
    return f"SELECT count(*) FROM ({first}) AS f WHERE {is_before('f', 't')}"
