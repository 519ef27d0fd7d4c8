"""What most tests need: a schedule, a clock, and somebody who does the work."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db import models

from activities.models import Activity, ActivityItem, OutputLine
from execution.children.nursery import Nursery
from execution.loops.recorder import StepOutput, write
from execution.models import Execution, Limit, Reservation, Worker, WorkerTask
from execution.models.attempt import ClaimedTask, Finish
from execution.queue import claim as queue_claim
from execution.queue.request import ClaimRequest, SeatCounts
from execution.steps.binding import bind
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from operations.initiator import Initiator
from schedules.models import Backfill, Occurrence, Schedule, Secret, SharedCalendar, Step, TaskTemplate

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
SOMEBODY = Initiator("user", "7", "ada")
M = TypeVar("M", bound=models.Model)
_numbers = itertools.count(1)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def step(name: str = "work", index: int = 0, function: str = "noop", /, **fields: Any) -> dict[str, Any]:
    """A python step that calls a function of tests/work.py in a thread, unless `config` says otherwise."""
    kwargs = fields.pop("kwargs", {})
    config = {
        "function": f"tests.work.{function}",
        "kwargs": kwargs,
        "isolation": fields.pop("isolation", "thread"),
    }
    return {"name": name, "index": index, "step_type": "python", "config": config, "max_retries": 0} | fields


def make_schedule(*steps: dict[str, Any], now: datetime = NOW, **fields: Any) -> Schedule:
    fields = {"name": f"Schedule {next(_numbers)}", "spec": {}} | fields
    return Schedule.objects.define(steps=steps or [step()], initiator=SOMEBODY, now=now, **fields)


def make_template(name: str = "Export", **fields: Any) -> TaskTemplate:
    """Of steps that call a function of tests/work.py with a value."""
    usual: dict[str, Any] = {
        "step_type": "python",
        "config": {"function": "tests.work.result", "kwargs": {"value": 1}, "isolation": "thread"},
    }
    return TaskTemplate.objects.define(name=name, **usual | fields, initiator=SOMEBODY, now=NOW)


def start(*steps: dict[str, Any], now: datetime = NOW, **fields: Any) -> Execution:
    """A new schedule's manual run, just started."""
    from execution.loops.manual_runs import trigger

    occurrence = trigger(make_schedule(*steps, now=now, **fields), initiator=SOMEBODY, now=now)
    return Execution.objects.get(occurrence=occurrence)


def make_worker(now: datetime = NOW) -> Worker:
    return Worker.objects.register(id=uuid.uuid4(), pools=[], seats=100, now=now)


def claim(
    worker: Worker,
    *,
    limit: int = 100,
    seats: SeatCounts | None = None,
    ahead: SeatCounts | None = None,
    now: datetime = NOW,
    pools: Sequence[str] = (),
) -> list[ClaimedTask]:
    """What a worker with so many free seats of each kind claims."""
    free: SeatCounts = {"thread": limit, "process": limit} if seats is None else seats
    return queue_claim.claim(ClaimRequest(worker.pk, pools, now, free, ahead or {}))


def end(
    worker: Worker, *tasks: ClaimedTask, status: str = "complete", now: datetime = NOW, **fields: Any
) -> set[int]:
    """Writes this outcome for each of the claimed tasks, as if their steps had ended so."""
    finishes = [_finish(task, status=status, now=now, **fields) for task in tasks]
    return WorkerTask.objects.finish(finishes, worker_id=worker.pk, now=now).accepted


def end_and_claim(
    worker: Worker, *tasks: ClaimedTask, limit: int = 100, now: datetime = NOW, **fields: Any
) -> list[ClaimedTask]:
    """In one transaction, as a worker does: what is claimed may take the places of what ends."""
    finishes = [_finish(task, now=now, **fields) for task in tasks]
    request = ClaimRequest(worker.pk, [], now, {"thread": limit, "process": limit})
    return WorkerTask.objects.finish(finishes, worker_id=worker.pk, now=now, claims=lambda: request).claimed


def _finish(task: ClaimedTask, *, now: datetime, status: str = "complete", **fields: Any) -> Finish:
    began = fields.pop("executed_at", now)
    return Finish(task, Outcome(status=status, executed_at=began, finished_at=now, **fields))


def break_down(worker: Worker, *tasks: ClaimedTask, now: datetime = NOW, **fields: Any) -> set[int]:
    """The steps of these tasks fail in a way that may be retried."""
    fields = {"error": "it broke", "can_retry": True} | fields
    return end(worker, *tasks, status="failed_with_error", now=now, **fields)


def work_on(worker: Worker, tasks: Sequence[ClaimedTask], *, now: datetime = NOW) -> set[int]:
    """Performs claimed tasks in this thread and writes their outcomes as a worker does."""
    with nursery() as children:
        finishes, bindings = [], bind(tasks)
        for task in tasks:
            said = StepOutput(task.activity_id, lambda: now)
            outcome = perform(
                task.work, said, nursery=children, binding=bindings.get(task.pk), clock=lambda: now
            )
            write([said], worker_id=worker.pk)
            finishes.append(Finish(task, outcome))
        if not finishes:
            return set()
        return WorkerTask.objects.finish(finishes, worker_id=worker.pk, now=now).accepted


def run_until_idle(*, now: datetime = NOW) -> list[str]:
    """Works until nothing is ready at `now`; returns the names of the steps in the order of their claims."""
    worker, names = make_worker(now), []
    while tasks := claim(worker, now=now):
        names += [task.name for task in tasks]
        work_on(worker, tasks, now=now)
    return names


@contextmanager
def nursery() -> Iterator[Nursery]:
    children = Nursery()
    try:
        yield children
    finally:
        children.close()


def queue(execution: Execution) -> dict[str, str]:
    """The status of each task that the execution still has, in the order of the plan."""
    return dict(WorkerTask.objects.filter(execution=execution).order_by("line").values_list("name", "status"))


def attempts(execution: Execution, name: str = "work") -> list[Activity]:
    """The chain of activities of one step."""
    rows = Activity.objects.filter(parent=execution.activity_id, target_name=name)
    return list(rows.order_by("attempt"))


def fresh(row: M) -> M:
    """The row as it is in the database."""
    return type(row)._default_manager.get(pk=row.pk)


def enqueue(*steps: dict[str, Any], now: datetime = NOW) -> list[WorkerTask]:
    """Single jobs, as they are in the queue."""
    keys = WorkerTask.objects.enqueue(steps, initiator=SOMEBODY, now=now)
    return sorted(WorkerTask.objects.filter(key__in=keys), key=lambda task: keys.index(task.key))


def row(held: ClaimedTask) -> WorkerTask:
    """The queue's row of a task that was claimed."""
    return WorkerTask.objects.get(pk=held.pk)


def everything() -> dict[str, list[dict[str, Any]]]:
    """All that the engine has stored, to show that something changed nothing."""
    kept: list[Any] = [
        Schedule,
        SharedCalendar,
        TaskTemplate,
        Step,
        Secret,
        Backfill,
        Occurrence,
        Execution,
        WorkerTask,
        Worker,
        Limit,
        Reservation,
    ]
    kept += [Activity, ActivityItem, OutputLine]
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in kept}


def step_statuses(execution: Execution) -> dict[str, list[str]]:
    """By step, the status of each attempt."""
    statuses: dict[str, list[str]] = {}
    for activity in Activity.objects.filter(parent=execution.activity_id).order_by("line", "attempt"):
        statuses.setdefault(activity.target_name, []).append(activity.status)
    return statuses


def fates(schedule: Schedule) -> list[tuple[str, str]]:
    """(status, reason) of each occurrence, in the order of their times."""
    rows = Occurrence.objects.filter(schedule=schedule).order_by("nominal_at", "pk")
    return list(rows.values_list("status", "reason"))
