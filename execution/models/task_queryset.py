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
from execution.queue.cancel import cancel
from execution.queue.claim import claim
from execution.queue.enqueue import enqueue, requeue
from execution.queue.finish import Finished, abandon, finish, release
from execution.queue.order import position_before_all
from execution.queue.recover import recover
from execution.queue.request import ClaimRequest, SeatCounts
from execution.queue.snapshot import is_any_open
from execution.steps.step_type import Isolation
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

    def lock(self) -> WorkerTaskQuerySet:
        """Lock in id order to avoid deadlocks."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def is_claimable(
        self,
        *,
        pools: Sequence[str],
        now: datetime,
        isolations: Collection[Isolation] = ("thread", "process"),
    ) -> bool:
        """Return whether a worker of these pools could claim a task now, as limits and reservations allow."""
        ready = self.queued().filter(isolation__in=isolations)
        ready = ready.filter(pool__in=pools) if pools else ready
        reserved = Reservation.objects.filter(released_at=None).values("pool")
        unlimited = ready.filter(is_delayed=False, is_limited=False).exclude(pool__in=reserved)
        ripe = ready.filter(is_delayed=True, available_at__lte=now)
        return unlimited.exists() or ripe.exists() or is_any_open(pools, isolations)

    def queued_later(self, *, pools: Sequence[str], now: datetime) -> datetime | None:
        """Return when the next task that is delayed beyond `now` will be ready; None if there is none."""
        later = self.queued().filter(is_delayed=True, available_at__gt=now)
        later = later.filter(pool__in=pools) if pools else later
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
        """Queue single jobs without an execution, each with an activity of its own; return their keys.

        A request is a step. It can also have a `position`, a time `available_at`, an `idempotency_key` (a
        repeated request returns the key of the first one's job) and a `dedup_key` (the job is skipped while
        another one with this key has not ended).
        """
        return enqueue(self, requests, initiator=initiator, now=now, may=may)

    def requeue(
        self, last: Activity, step: dict[str, Any], *, initiator: Initiator, now: datetime
    ) -> WorkerTask:
        """Queue another attempt of a job whose row is gone. Its activity is unique, so only one succeeds."""
        return requeue(self, last, step, initiator=initiator, now=now)

    def claim(
        self,
        worker: Worker,
        *,
        seats: SeatCounts,
        pools: Sequence[str],
        now: datetime,
        ahead: SeatCounts | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> list[ClaimedTask]:
        """Claim ready tasks for a living worker: the first in order, at most as many as it has free seats.

        `ahead` is how many tasks without a limit can be claimed in addition to the free seats. Getting the
        locks can take long, so `clock` is then called for the time to record; without it, `now` is recorded.
        """
        return claim(ClaimRequest(worker.pk, pools, now, seats, ahead or {}, clock))

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
        `claims` is called for the free seats once the outcomes are written; if it returns None, nothing is
        claimed.
        """
        return finish(self, finishes, worker_id=worker_id, now=now, claims=claims)

    def release(self, tasks: Sequence[ClaimedTask], *, worker_id: uuid.UUID) -> set[int]:
        """Return unstarted tasks to the queue as the same attempts, except those that are being cancelled."""
        return release(tasks, worker_id=worker_id)

    def abandon(self, task: ClaimedTask, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """End a task whose outcome the database refuses, as a last resort. Its execution is then stuck."""
        return abandon(task, error, worker_id=worker_id, now=now)

    def recover(self, *, now: datetime) -> int:
        """End the attempts of workers that are dead or gone, in the same way as a worker ends its own.

        Locked rows are left for later, so that a process that froze in the middle of a write blocks no other.
        """
        return recover(self, now=now)

    def cancel(self, *, now: datetime, kept: Collection[int] = ()) -> int:
        """Close tasks that have not started, and flag running ones. The caller holds the execution's lock.

        Tasks of the lines in `kept` are left alone.
        """
        return cancel(self, now=now, kept=kept)

    def reorder(self, keys: Sequence[uuid.UUID], *, initiator: Initiator, now: datetime) -> int:
        """Move these tasks, in this order, ahead of all others in their pool with the same priority."""
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
                raise Refused("Only tasks in the same pool and with the same priority can be reordered.")
            front = position_before_all(now)
            update_each(
                self.model,
                ("position",),
                [(task.pk, front + place) for place, task in enumerate(found)],
                where="t.status <> 'processing'",
            )
            Activity.objects.record_each("reorder", found, initiator=initiator, now=now)
        return len(found)
