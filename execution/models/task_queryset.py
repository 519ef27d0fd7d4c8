"""Queries and operations on many tasks at once."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import models, transaction
from django.db.models import Min

from activities.models import Activity
from database.statements import literal, update_each
from execution.queue.enqueue import enqueue, requeue
from execution.queue.finish import Finished, abandon, finish, keep_steps, release
from execution.queue.order import position_before_all
from execution.queue.recover import recover
from execution.queue.request import ClaimRequest
from execution.queue.snapshot import is_any_open
from operations.initiator import Initiator
from schedules import permissions
from schedules.models import Refused

from .attempt import ClaimedTask, Finish
from .execution import Execution
from .reservation import Reservation
from .worker import Worker

if TYPE_CHECKING:
    from .task import WorkerTask


class WorkerTaskQuerySet(models.QuerySet["WorkerTask"]):
    def waiting(self) -> WorkerTaskQuerySet:
        return self.filter(status=literal(self.model.Status.WAITING))

    def queued(self) -> WorkerTaskQuerySet:
        return self.filter(status=literal(self.model.Status.QUEUED))

    def processing(self) -> WorkerTaskQuerySet:
        return self.filter(status=literal(self.model.Status.PROCESSING))

    def unclaimed(self) -> WorkerTaskQuerySet:
        return self.exclude(status=self.model.Status.PROCESSING)

    def live(self) -> WorkerTaskQuerySet:
        return self.exclude(status=self.model.Status.WAITING)

    def served_by(self, pools: Sequence[str]) -> WorkerTaskQuerySet:
        """Keep the tasks that a worker with these pools serves; a worker without pools serves all tasks."""
        return self.filter(pool__in=pools) if pools else self

    def unserved(self, workers: Sequence[Sequence[str]]) -> WorkerTaskQuerySet:
        """Keep the tasks that none of the workers serves; each worker is given as its list of pools."""
        if not all(workers):
            return self.none()
        return self.exclude(pool__in={pool for pools in workers for pool in pools})

    def lock(self) -> WorkerTaskQuerySet:
        """Lock the tasks in id order, to avoid deadlocks."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def is_claimable(self, *, pools: Sequence[str], now: datetime) -> bool:
        """Return whether a worker with these pools can claim a task now, within limits and reservations."""
        ready = self.queued().served_by(pools)
        reserved = Reservation.objects.filter(released_at=None).values("pool")
        unlimited = ready.filter(is_delayed=False, is_limited=False).exclude(pool__in=reserved)
        ripe = ready.filter(is_delayed=True, available_at__lte=now)
        return unlimited.exists() or ripe.exists() or is_any_open(pools)

    def queued_later(self, *, pools: Sequence[str], now: datetime) -> datetime | None:
        """Return when the next task that is delayed beyond `now` will be ready; None if there is none."""
        later = self.queued().served_by(pools).filter(is_delayed=True, available_at__gt=now)
        at: datetime | None = later.aggregate(at=Min("available_at"))["at"]
        return at

    def orphaned(self) -> WorkerTaskQuerySet:
        return self.processing().exclude(worker__status=Worker.Status.ALIVE)

    def enqueue(
        self,
        requests: Iterable[Mapping[str, Any]],
        *,
        initiator: Initiator,
        now: datetime,
        may: permissions.May = permissions.anything,
    ) -> list[uuid.UUID]:
        """Queue single jobs without an execution, each with an activity of its own; return the jobs' keys.

        A request has the fields of a step. It can also have a `position`, a start time `available_at`, an
        `idempotency_key` (a repeated request returns the key of the first request's job) and a `dedup_key`
        (the job is skipped while another job with the same key has not ended).
        """
        return enqueue(self, requests, initiator=initiator, now=now, may=may)

    def requeue(
        self, last: Activity, step: dict[str, Any], *, initiator: Initiator, now: datetime
    ) -> WorkerTask:
        """Queue another attempt of a job whose task has been deleted from the queue; return the new task.

        The activity of an attempt is unique, so only one of several such calls succeeds.
        """
        return requeue(self, last, step, initiator=initiator, now=now)

    def finish(
        self,
        finishes: Sequence[Finish],
        *,
        worker_id: uuid.UUID,
        now: datetime,
        claims: Callable[[], ClaimRequest | None] = lambda: None,
    ) -> Finished:
        """End attempts of one worker, and claim tasks for the seats that become free, in one transaction.

        The fence is (id, attempt, worker): outcomes of tasks that another worker has taken over are ignored.
        `claims` is called once the outcomes are written. It returns a request for new tasks, or None to claim
        none.
        """
        return finish(self, finishes, worker_id=worker_id, now=now, claims=claims)

    def release(self, tasks: Sequence[ClaimedTask], *, worker_id: uuid.UUID) -> set[int]:
        """Put tasks that have not started back into the queue, as the same attempts; return their ids.

        Tasks that are being cancelled, or that the worker no longer holds, are left alone.
        """
        return release(tasks, worker_id=worker_id)

    def abandon(self, task: ClaimedTask, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """Delete a task whose outcome the database refuses, as a last resort, and fail its activity.

        The execution of the task does not advance until the execution is recovered. Return a set with the id
        of the task, or an empty set if the worker no longer held the task.
        """
        return abandon(task, error, worker_id=worker_id, now=now)

    def recover(self, *, now: datetime) -> int:
        """End the attempts of workers that are dead or gone, in the same way as a worker ends its own.

        Return how many attempts were ended. Locked rows are left for later, so that a process that froze in
        the middle of a write does not block recovery.
        """
        return recover(self, now=now)

    def cancel(self, *, now: datetime, kept: Collection[int] = ()) -> int:
        """Delete tasks that have not started, and ask running ones to stop; return how many there were.

        Tasks of the plan lines in `kept` are left alone. If the tasks belong to an execution, the caller must
        have locked the execution.
        """
        # Locked first: both writes would miss a task that is released in between.
        tasks = [task for task in self.lock() if task.line not in kept]
        self._close([task for task in tasks if task.status != self.model.Status.PROCESSING], now=now)
        flagged = self.processing().exclude(line__in=kept)
        flagged.filter(cancel_requested_at=None).update(cancel_requested_at=now)
        return len(tasks)

    def _close(self, idle: Sequence[WorkerTask], *, now: datetime) -> None:
        self.filter(pk__in=[task.pk for task in idle]).delete()
        for has_begun, told in (
            (False, "Cancelled before the step started."),
            (True, "Cancelled while the step was waiting to continue."),
        ):
            ids = [task.activity_id for task in idle if (task.begun_at is not None) == has_begun]
            Activity.objects.filter(pk__in=ids).close(status=Activity.Status.CANCELLED, message=told, now=now)
        keep_steps([(task.activity_id, task.step) for task in idle if task.execution_id is None])

    def reorder(self, keys: Sequence[uuid.UUID], *, initiator: Initiator, now: datetime) -> int:
        """Move these tasks, in this order, ahead of all other tasks with the same pool and priority.

        Return how many were moved. Tasks that have been claimed in the meantime are left out.
        """
        with transaction.atomic():
            # Found through their activities, as the queue has no index on the key.
            found_ids = self.filter(activity__task_key__in=keys).values_list("pk", flat=True)
            named = self.filter(pk__in=list(found_ids))
            # Transactions that end or advance these executions write to several tasks, in any order.
            executions = Execution.objects.filter(pk__in=set(named.values_list("execution_id", flat=True)))
            list(executions.lock().values_list("pk"))
            rows = {task.key: task for task in named.unclaimed().lock()}
            found = [rows[key] for key in dict.fromkeys(keys) if key in rows]
            if len({(task.pool, task.priority) for task in found}) > 1:
                raise Refused("All tasks to reorder must have the same pool and the same priority.")
            front = position_before_all(now)
            update_each(
                self.model,
                ("position",),
                [(task.pk, front + place) for place, task in enumerate(found)],
                where="t.status <> 'processing'",
            )
            Activity.objects.record_each("reorder", found, initiator=initiator, now=now)
        return len(found)
