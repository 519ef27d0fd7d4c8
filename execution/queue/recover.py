"""End the attempts of workers that are dead or gone, in the same way as a worker ends its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Q

from execution.models.attempt import ClaimedTask, Finish
from execution.models.execution import Execution
from schedules import registry

if TYPE_CHECKING:
    from execution.models.task import WorkerTask
    from execution.models.task_queryset import WorkerTaskQuerySet

RECOVERED_PER_PASS = 200


def recover(queue: WorkerTaskQuerySet, *, now: datetime) -> int:
    """End orphaned attempts as lost, worker by worker and in batches; return how many were ended."""
    recovered = 0
    orphans = sorted(queue.orphaned().values_list("pk", flat=True))
    for start in range(0, len(orphans), RECOVERED_PER_PASS):
        mine = queue.orphaned().select_related("worker")
        tasks = mine.in_bulk(orphans[start : start + RECOVERED_PER_PASS]).values()
        for worker in {task.worker for task in tasks if task.worker}:
            # This process may have read the clock before another found the worker dead.
            at = max(now, worker.ended_at or now)
            for part in _apart([task for task in tasks if task.worker_id == worker.pk]):
                recovered += len(_recover(queue, part, worker_id=worker.pk, now=at))
    return recovered


def _apart(tasks: Sequence[WorkerTask]) -> Iterator[Sequence[WorkerTask]]:
    """Split the tasks into batches, each of which is recovered in one transaction.

    A task forms a batch of its own if its step type locks other rows as well, in an order that is not known.
    """
    alone = [task for task in tasks if _is_lost_alone(task)]
    yield from ([task] for task in alone)
    yield [task for task in tasks if task not in alone]


def _is_lost_alone(task: WorkerTask) -> bool:
    kind = registry.step_types.get(ClaimedTask.of(task).work.step_type)
    return kind is not None and kind.is_recovered_individually


def _recover(
    queue: WorkerTaskQuerySet, tasks: Sequence[WorkerTask], *, worker_id: uuid.UUID, now: datetime
) -> set[int]:
    with transaction.atomic():
        lost = [
            Finish.lost(ClaimedTask.of(task), is_cancelled=task.cancel_requested_at is not None, now=now)
            for task in _free(queue, tasks)
        ]
        return queue.finish(lost, worker_id=worker_id, now=now).accepted if lost else set()


def _free(queue: WorkerTaskQuerySet, tasks: Sequence[WorkerTask]) -> list[WorkerTask]:
    """Lock and return those tasks whose row, activity and execution are not locked by another transaction."""
    ids = {task.execution_id for task in tasks if task.execution_id is not None}
    executions = [execution.pk for execution in Execution.objects.lock(skip_locked=True).filter(pk__in=ids)]
    rows = queue.processing().filter(pk__in=[t.pk for t in tasks]).select_related("activity")
    rows = rows.filter(Q(execution=None) | Q(execution__in=executions)).order_by("pk")
    return list(rows.select_for_update(of=("self", "activity"), no_key=True, skip_locked=True))
