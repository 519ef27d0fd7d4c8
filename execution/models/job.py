from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError, transaction

from activities.models import Activity
from database.wake import wake
from operations.initiator import Initiator
from schedules.models import Refused
from schedules.registry import step_types

from .task import WorkerTask

MAY_BE_RETRIED = (
    Activity.Status.FAILED_WITH_ERROR,
    Activity.Status.COMPLETE_WITH_ERROR,
    Activity.Status.CANCELLED,
)


@dataclass(frozen=True)
class Job:
    """A single job, found by its permanent key: its last activity and, until the job ends, its task."""

    key: uuid.UUID
    task: WorkerTask | None
    activity: Activity

    @classmethod
    def find(cls, key: uuid.UUID) -> Job | None:
        task = WorkerTask.objects.filter(activity__task_key=key, execution=None).first()
        attempts = Activity.objects.filter(task_key=key, parent=None)
        last = attempts.order_by("-attempt").first()
        return None if last is None else cls(key, task, last)

    @property
    def state(self) -> str:
        return self.activity.status if self.task is None else self.task.state

    def cancel(self, *, initiator: Initiator, now: datetime, reason: str = "") -> bool:
        """Cancel a job that has not started, or ask a running one to stop; return False if it has ended."""
        own = WorkerTask.objects.filter(activity__task_key=self.key, execution=None)
        with transaction.atomic():
            if not WorkerTask.objects.filter(pk__in=list(own.values_list("pk", flat=True))).cancel(now=now):
                return False
            Activity.objects.record("cancel", self.activity, initiator=initiator, now=now, message=reason)
            wake("jim_tasks")
        return True

    def retry(self, *, initiator: Initiator, now: datetime) -> WorkerTask:
        """Queue another attempt of a job that failed or was cancelled, with its full number of retries."""
        last = self.activity
        if not last.is_final:
            raise Refused(f"“{last.target_name}” has not ended yet, so it cannot be retried.")
        if last.status not in MAY_BE_RETRIED:
            raise Refused(f"“{last.target_name}” did not fail: there is nothing to retry.")
        step = (last.details or {}).get("step")
        if step is None:
            raise Refused(f"“{last.target_name}” is part of an execution. Retry the execution instead.")
        kind = step_types.get(step.get("step_type", ""))
        if kind is not None and not kind.is_offered:
            raise Refused(
                f"“{last.target_name}” cannot be retried here, because it was started by a workflow. The "
                "workflow decides whether to retry it."
            )
        try:
            with transaction.atomic():
                return WorkerTask.objects.requeue(last, step, initiator=initiator, now=now)
        except IntegrityError as error:
            raise Refused(
                f"“{last.target_name}”, or a job with the same deduplication key, is already in the queue."
            ) from error
