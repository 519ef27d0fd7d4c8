"""Cancel tasks: close those that have not started, and ask running ones to stop."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from activities.models import Activity

from .finish import keep_steps

if TYPE_CHECKING:
    from execution.models.task_queryset import WorkerTaskQuerySet


def cancel(queue: WorkerTaskQuerySet, *, now: datetime, kept: Collection[int]) -> int:
    """Close tasks that have not started, and flag running ones. Lines in `kept` are left alone."""
    # Locked first: both writes would miss a task that is released in between.
    tasks = [task for task in queue.lock() if task.line not in kept]
    idle = [task for task in tasks if task.status != queue.model.Status.PROCESSING]
    queue.filter(pk__in=[task.pk for task in idle]).delete()
    for has_begun, told in (
        (False, "Cancelled before it started."),
        (True, "Cancelled while it was waiting."),
    ):
        ids = [task.activity_id for task in idle if (task.begun_at is not None) == has_begun]
        Activity.objects.filter(pk__in=ids).close(status=Activity.Status.CANCELLED, message=told, now=now)
    keep_steps([(task.activity_id, task.step) for task in idle if task.execution_id is None])
    flagged = queue.processing().exclude(line__in=kept)
    flagged.filter(cancel_requested_at=None).update(cancel_requested_at=now)
    return len(tasks)
