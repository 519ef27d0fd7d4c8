"""What can be asked, and done, of many tasks at once: the verbs of the queue."""

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
        """Select the tasks that a worker of these pools serves; a worker without pools serves all."""
        return self.filter(pool__in=pools) if pools else self

    def unserved(self, workers: Sequence[Sequence[str]]) -> WorkerTaskQuerySet:
        """Select the tasks that none of the workers with these pools serves."""
        if not all(workers):
            return self.none()
        return self.exclude(pool__in={pool for pools in workers for pool in pools})

    def lock(self) -> WorkerTaskQuerySet:
        """Lock in id order to avoid deadlocks."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def is_claimable(self, *, pools: Sequence[str], now: datetime) -> bool:
        """Whether a worker of these pools would get anything. What a full limit holds back is not ready."""
        ready = self.queued().served_by(pools)
        reserved = Reservation.objects.filter(released_at=None).values("pool")
        unlimited = ready.filter(is_delayed=False, is_limited=False).exclude(pool__in=reserved)
        ripe = ready.filter(is_delayed=True, available_at__lte=now)
        return unlimited.exists() or ripe.exists() or is_any_open(pools)

    def queued_later(self, *, pools: Sequence[str], now: datetime) -> datetime | None:
        """When the next of the tasks that were delayed beyond this time will be ready."""
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
        """Single jobs without an execution, each one's activity is its root; returns their keys.

        A request is a step, and may have a `position`, a time to be `available_at`, an `idempotency_key` (a
        repeated request names the first one's job) and a `dedup_key` (skipped while its twin has not ended).
        """
        return enqueue(self, requests, initiator=initiator, now=now, may=may)

    def requeue(
        self, last: Activity, step: dict[str, Any], *, initiator: Initiator, now: datetime
    ) -> WorkerTask:
        """Add the next attempt of a job whose row is gone. Its activity is unique, so one retry wins."""
        return requeue(self, last, step, initiator=initiator, now=now)

    def finish(
        self,
        finishes: Sequence[Finish],
        *,
        worker_id: uuid.UUID,
        now: datetime,
        claims: Callable[[], ClaimRequest | None] = lambda: None,
    ) -> Finished:
        """End attempts of one worker, and claim for the seats that this leaves, in one transaction.

        The fence is (id, attempt, worker): what another has taken over since changes nothing. `claims` is
        asked for the free seats when the outcomes are written; without a request, nothing is claimed.
        """
        return finish(self, finishes, worker_id=worker_id, now=now, claims=claims)

    def release(self, tasks: Sequence[ClaimedTask], *, worker_id: uuid.UUID) -> set[int]:
        """Back to the queue, unstarted, as the same attempt; one that is being cancelled is not released."""
        return release(tasks, worker_id=worker_id)

    def abandon(self, task: ClaimedTask, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """End a task whose outcome the database refuses, as a last resort; its execution counts as stuck."""
        return abandon(task, error, worker_id=worker_id, now=now)

    def recover(self, *, now: datetime) -> int:
        """End the attempts of workers that are dead or gone, in the way a worker ends its own.

        Leave locked rows for later: a process that froze in the middle of a write stops no other.
        """
        return recover(self, now=now)

    def cancel(self, *, now: datetime, kept: Collection[int] = ()) -> int:
        """Close what has not started, flag what runs; the lines that are `kept` go on.

        The caller holds the lock of the execution.
        """
        # Locked before they are told apart: a release in between would escape both writes.
        tasks = [task for task in self.lock() if task.line not in kept]
        self._close([task for task in tasks if task.status != self.model.Status.PROCESSING], now=now)
        flagged = self.processing().exclude(line__in=kept)
        flagged.filter(cancel_requested_at=None).update(cancel_requested_at=now)
        return len(tasks)

    def _close(self, idle: Sequence[WorkerTask], *, now: datetime) -> None:
        self.filter(pk__in=[task.pk for task in idle]).delete()
        for has_begun, told in (
            (False, "Cancelled before it started."),
            (True, "Cancelled while it waited."),
        ):
            ids = [task.activity_id for task in idle if (task.begun_at is not None) == has_begun]
            Activity.objects.filter(pk__in=ids).close(status=Activity.Status.CANCELLED, message=told, now=now)
        keep_steps([(task.activity_id, task.step) for task in idle if task.execution_id is None])

    def reorder(self, keys: Sequence[uuid.UUID], *, initiator: Initiator, now: datetime) -> int:
        """Put these first, in this order, among what waits in their pool with the same priority."""
        with transaction.atomic():
            # Found through their activities: the queue has no index of its own for that.
            found_ids = self.filter(activity__task_key__in=keys).values_list("pk", flat=True)
            named = self.filter(pk__in=list(found_ids))
            # Transactions that end or advance their executions write to several of them, in no order.
            executions = Execution.objects.filter(pk__in=set(named.values_list("execution_id", flat=True)))
            list(executions.lock().values_list("pk"))
            rows = {task.key: task for task in named.unclaimed().lock()}
            found = [rows[key] for key in dict.fromkeys(keys) if key in rows]
            if len({(task.pool, task.priority) for task in found}) > 1:
                raise Refused("Only tasks of one pool and one priority can be put in order.")
            front = position_before_all(now)
            update_each(
                self.model,
                ("position",),
                [(task.pk, front + place) for place, task in enumerate(found)],
                where="t.status <> 'processing'",
            )
            Activity.objects.record_each("reorder", found, initiator=initiator, now=now)
        return len(found)
