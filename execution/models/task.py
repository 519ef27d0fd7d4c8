from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection, models, transaction
from django.db.models import F, Min, Q

from activities.models import Activity, Ending, Initiator
from activities.statements import placeholders, update_each
from activities.wake import wake
from execution import retry
from execution.steps.base import Isolation, Outcome, Reason, Work
from schedules.models import Step
from schedules.registry import step_types

from .execution import Execution
from .worker import Worker

RECOVERED_PER_PASS = 200


@dataclass(frozen=True)
class Finish:
    """One attempt as it was claimed, and how it ended."""

    task: WorkerTask
    outcome: Outcome

    @classmethod
    def lost(cls, task: WorkerTask, *, now: datetime) -> Finish:
        return cls.unfinished(task, "lost", "worker lost", now=now)

    @classmethod
    def unfinished(cls, task: WorkerTask, reason: Reason, why: str, *, now: datetime) -> Finish:
        """The end of an attempt whose step did not say how it ended."""
        is_cancel = reason == "cancel"
        began = task.claimed_at or now
        outcome = Outcome(
            status=Activity.Status.CANCELLED if is_cancel else Activity.Status.FAILED_WITH_ERROR,
            executed_at=began,
            # A recoverer may have read the clock before the claim that it ends.
            finished_at=max(began, now),
            message=why if is_cancel else "",
            error="" if is_cancel else why,
            interrupted=reason,
            can_retry=True,
        )
        return cls(task, outcome)

    def next(self, now: datetime) -> retry.Next | None:
        """The attempt after this one, None where there is no question of one."""
        budget = retry.Budget.of(self.task.failures, self.task.crashes, self.task.step)
        if self.outcome.status != Activity.Status.FAILED_WITH_ERROR or self.outcome.interrupted == "cancel":
            return None
        if self.outcome.interrupted == "lost":
            return retry.after_crash(budget, now=now)
        if self.outcome.interrupted == "drain":
            return retry.after_drain(budget, now=now)
        return retry.after_failure(budget, can_retry=self.outcome.can_retry, now=now)

    def ending(self, *, why_not: str = "", cancelled: bool = False) -> Ending:
        outcome = self.outcome
        status, error = outcome.status, f"{outcome.error}: {why_not}" if why_not else outcome.error
        if cancelled and outcome.interrupted in ("lost", "drain"):
            status = Activity.Status.CANCELLED
        return Ending(
            self.task.activity_id,
            status,
            outcome.finished_at,
            outcome.executed_at,
            outcome.message,
            error,
            outcome.traceback,
            outcome.result,
            outcome.items_total,
            outcome.items_failed,
        )


class WorkerTaskQuerySet(models.QuerySet["WorkerTask"]):
    def waiting(self) -> WorkerTaskQuerySet:
        return self.filter(status=WorkerTask.Status.WAITING)

    def queued(self) -> WorkerTaskQuerySet:
        return self.filter(status=WorkerTask.Status.QUEUED)

    def processing(self) -> WorkerTaskQuerySet:
        return self.filter(status=WorkerTask.Status.PROCESSING)

    def live(self) -> WorkerTaskQuerySet:
        return self.exclude(status=WorkerTask.Status.WAITING)

    def lock(self) -> WorkerTaskQuerySet:
        """By id, as everybody does, so that nobody waits in a circle."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def claimable(
        self,
        *,
        pools: Sequence[str],
        now: datetime,
        isolations: Collection[Isolation] = ("thread", "process"),
    ) -> WorkerTaskQuerySet:
        ready = self.queued().filter(isolation__in=isolations, available_at__lte=now)
        return ready.filter(pool__in=pools) if pools else ready

    def queued_later(self, *, pools: Sequence[str], now: datetime) -> datetime | None:
        """When the next of the tasks that are not ready yet will be."""
        later = self.queued().filter(available_at__gt=now)
        later = later.filter(pool__in=pools) if pools else later
        at: datetime | None = later.aggregate(at=Min("available_at"))["at"]
        return at

    def orphaned(self) -> WorkerTaskQuerySet:
        return self.processing().exclude(worker__status=Worker.Status.ALIVE)

    def enqueue(
        self, steps: Iterable[Mapping[str, Any]], *, initiator: Initiator, now: datetime
    ) -> list[WorkerTask]:
        """Single jobs without an execution: each one's activity is its root."""
        tasks = [
            WorkerTask._of_step(_adhoc_line(step), initiator, status="queued", now=now) for step in steps
        ]
        with transaction.atomic():
            Activity.objects.bulk_create([task.activity for task in tasks])
            self.bulk_create(tasks)
            wake("jim_tasks")
        return tasks

    def claim(
        self, worker: Worker, *, seats: Mapping[Isolation, int], pools: Sequence[str], now: datetime
    ) -> list[WorkerTask]:
        """Takes ready tasks for a living worker: the first in order, at most as many as it has seats."""
        wanted = [isolation for isolation, free in seats.items() if free > 0]
        if not wanted or not self.claimable(pools=pools, now=now, isolations=wanted).exists():
            return []
        with transaction.atomic():
            tasks = [
                task
                for isolation in wanted
                for task in self._claim(worker, isolation, seats[isolation], pools, now)
            ]
            if tasks:
                Activity.objects.begin([task.activity_id for task in tasks], worker_id=worker.pk, now=now)
        return sorted(tasks, key=lambda task: (-task.priority, task.position, task.pk))

    def release(self, tasks: Sequence[WorkerTask], *, worker_id: uuid.UUID) -> set[int]:
        """Back to the queue, unstarted, as the same attempt; one that is being cancelled is not released."""
        with transaction.atomic():
            released = self._held(tasks, worker_id, extra="AND cancel_requested_at IS NULL", verb=_RELEASE)
            Activity.objects.unbegin([task.activity_id for task in tasks if task.pk in released])
            wake("jim_tasks")
        return set(released)

    def finish(self, finishes: Sequence[Finish], *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """Ends attempts of one worker, in one transaction; returns the tasks whose outcome was accepted.

        The fence is (id, attempt, worker): what another has taken over since changes nothing.
        """
        with transaction.atomic():
            ids = {f.task.execution_id for f in finishes if f.task.execution_id is not None}
            executions = list(Execution.objects.lock().filter(pk__in=ids)) if ids else []
            following = {f.task.pk: nxt for f in finishes if (nxt := f.next(now)) is not None}
            retried = self._retry(
                [f for f in finishes if _is_again(following.get(f.task.pk))], following, worker_id, now
            )
            over = [f for f in finishes if f.task.pk not in retried]
            gone = self._held([f.task for f in over], worker_id, verb=_DELETE)
            endings = [f.ending() for f in finishes if f.task.pk in retried]
            for f in over:
                if f.task.pk in gone:
                    nxt = following.get(f.task.pk)
                    endings.append(f.ending(why_not=nxt.why_not if nxt else "", cancelled=gone[f.task.pk]))
            if endings:
                Activity.objects.finish(endings)
            Execution.objects.advance(executions, now=now)
        return retried | set(gone)

    def cancel(self, *, now: datetime) -> None:
        """Closes what has not started, flags what runs. The caller holds the execution's lock.

        The rows are locked before they are told apart: a release in between would escape both writes.
        """
        tasks = list(self.lock())
        idle = [task for task in tasks if task.status != WorkerTask.Status.PROCESSING]
        self.filter(pk__in=[task.pk for task in idle]).delete()
        Activity.objects.filter(pk__in=[task.activity_id for task in idle]).close(
            status=Activity.Status.CANCELLED, message="Cancelled before it started.", now=now
        )
        self.processing().filter(cancel_requested_at=None).update(cancel_requested_at=now)

    def recover(self, *, now: datetime) -> int:
        """Ends the attempts of workers that are dead or gone, in the way a worker ends its own.

        What somebody holds is left for later: whoever froze in the middle of a write stops nobody else.
        """
        recovered = 0
        orphans = sorted(self.orphaned().values_list("pk", flat=True))
        for start in range(0, len(orphans), RECOVERED_PER_PASS):
            tasks = self.orphaned().in_bulk(orphans[start : start + RECOVERED_PER_PASS]).values()
            for worker_id in {task.worker_id for task in tasks if task.worker_id}:
                own = [task for task in tasks if task.worker_id == worker_id]
                recovered += len(self._recover(own, worker_id=worker_id, now=now))
        return recovered

    def _recover(self, tasks: Sequence[WorkerTask], *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        with transaction.atomic():
            lost = [Finish.lost(task, now=now) for task in _free(tasks)]
            return self.finish(lost, worker_id=worker_id, now=now) if lost else set()

    def abandon(self, task: WorkerTask, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """The last resort for an outcome that the database refuses; its execution counts as stuck then."""
        with transaction.atomic():
            gone = self._held([task], worker_id, verb=_DELETE)
            if gone:
                failed = Activity.Status.FAILED_WITH_ERROR
                Activity.objects.finish([Ending(task.activity_id, failed, now, task.claimed_at, error=error)])
        return set(gone)

    def _claim(
        self, worker: Worker, isolation: Isolation, limit: int, pools: Sequence[str], now: datetime
    ) -> list[WorkerTask]:
        columns = ", ".join(f'"{field.column}"' for field in WorkerTask._meta.concrete_fields)
        in_pools = f"AND pool IN ({', '.join(['%s'] * len(pools))})" if pools else ""
        pick = (
            "SELECT id FROM execution_workertask WHERE status = 'queued' AND isolation = %s "
            f"AND available_at <= %s {in_pools} ORDER BY priority DESC, position, id LIMIT %s"
        )
        # An array is computed once; a plain IN may become a join that runs the LIMIT again for each row.
        chosen = f"id = ANY(ARRAY({pick} FOR UPDATE SKIP LOCKED))" if _is_postgresql() else f"id IN ({pick})"
        sql = (
            "UPDATE execution_workertask SET status = 'processing', worker_id = %s, claimed_at = %s "
            f"WHERE {chosen} AND status = 'queued' "
            "AND EXISTS (SELECT 1 FROM execution_worker w WHERE w.id = %s AND w.status = 'alive') "
            f"RETURNING {columns}"
        )
        at = connection.ops.adapt_datetimefield_value(now)
        own = WorkerTask._meta.get_field("worker").get_db_prep_value(worker.pk, connection)
        return list(self.raw(sql, [own, at, isolation, at, *pools, limit, own]))

    def _held(
        self, tasks: Sequence[WorkerTask], worker_id: uuid.UUID, *, verb: str, extra: str = ""
    ) -> dict[int, bool]:
        """Deletes or releases what this worker still holds; tells of each whether it was being cancelled."""
        if not tasks:
            return {}
        pairs = [(task.pk, task.attempt) for task in tasks]
        own = WorkerTask._meta.get_field("worker").get_db_prep_value(worker_id, connection)
        held = (
            f"(id, attempt) IN (VALUES {placeholders(pairs)}) AND worker_id = %s "
            f"AND status = 'processing' {extra}"
        )
        if _is_postgresql():
            # Locked in the order of all others; a plain IN would lock them in any.
            held = f"id = ANY(ARRAY(SELECT id FROM execution_workertask WHERE {held} ORDER BY id FOR UPDATE))"
        sql = f"{verb} WHERE {held} RETURNING id, cancel_requested_at"
        with connection.cursor() as cursor:
            cursor.execute(sql, [*(value for pair in pairs for value in pair), own])
            # Asked here: SQLite 3.40 answers IS NOT NULL wrongly after RETURNING.
            return {pk: at is not None for pk, at in cursor.fetchall()}

    def _retry(
        self,
        finishes: Sequence[Finish],
        following: Mapping[int, retry.Next],
        worker_id: uuid.UUID,
        now: datetime,
    ) -> set[int]:
        """The same row, queued again for its next attempt, with a pending activity linked to this one."""
        if not finishes:
            return set()
        attempts = {f.task.pk: f.task.attempt for f in finishes}
        rows = self.filter(pk__in=attempts, worker=worker_id, cancel_requested_at=None).processing()
        held = [task for task in rows.lock().select_related("activity") if task.attempt == attempts[task.pk]]
        activities = Activity.objects.bulk_create([task._next_activity(now) for task in held])
        update_each(
            WorkerTask,
            ("status", "worker", "claimed_at", "attempt", "failures", "crashes", "available_at", "activity"),
            [
                (
                    task.pk,
                    "queued",
                    None,
                    None,
                    activity.attempt,
                    nxt.failures,
                    nxt.crashes,
                    nxt.available_at,
                    activity.pk,
                )
                for task, activity in zip(held, activities, strict=True)
                for nxt in [following[task.pk]]
            ],
            where="t.status = 'processing'",
        )
        if held:
            wake("jim_tasks")
        return {task.pk for task in held}


_DELETE = "DELETE FROM execution_workertask"
_RELEASE = "UPDATE execution_workertask SET status = 'queued', worker_id = NULL, claimed_at = NULL"


def _free(tasks: Sequence[WorkerTask]) -> list[WorkerTask]:
    """Those that nobody holds, nor their execution or activity; they are locked from now on."""
    ids = {task.execution_id for task in tasks if task.execution_id is not None}
    executions = [execution.pk for execution in Execution.objects.lock(skip_locked=True).filter(pk__in=ids)]
    rows = WorkerTask.objects.filter(pk__in=[task.pk for task in tasks]).select_related("activity")
    rows = rows.filter(Q(execution=None) | Q(execution__in=executions)).order_by("pk")
    return list(rows.select_for_update(of=("self", "activity"), no_key=True, skip_locked=True))


def _is_again(nxt: retry.Next | None) -> bool:
    return nxt is not None and nxt.available_at is not None


def _is_postgresql() -> bool:
    return connection.vendor == "postgresql"


def _adhoc_line(step: Mapping[str, Any]) -> dict[str, Any]:
    whole = Step(**step)
    whole.clean_fields(exclude=["schedule"])
    whole.clean()
    return whole.as_json() | {
        "line": 0,
        "key": str(uuid.uuid4()),
        "isolation": step_types[whole.step_type].isolation(whole.config),
        "schedule": "",
        "nominal_at": None,
    }


class WorkerTask(models.Model):
    """The queue row of one step, for its whole life, retries included; deleted when its work is done."""

    class Status(models.TextChoices):
        WAITING = "waiting"
        QUEUED = "queued"
        PROCESSING = "processing"

    key = models.UUIDField(unique=True)
    execution = models.ForeignKey(Execution, models.CASCADE, null=True, blank=True, related_name="tasks")
    activity = models.ForeignKey(Activity, models.PROTECT, related_name="+")
    line = models.PositiveIntegerField()
    step_index = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    step = models.JSONField(help_text="The line of the plan, frozen.")
    pool = models.CharField(max_length=40)
    isolation = models.CharField(max_length=8)
    priority = models.IntegerField(default=0)
    position = models.IntegerField(default=0)
    status = models.CharField(max_length=10, choices=Status.choices)
    attempt = models.PositiveIntegerField(default=1)
    failures = models.PositiveIntegerField(default=0)
    crashes = models.PositiveIntegerField(default=0)
    available_at = models.DateTimeField()
    worker = models.ForeignKey(
        Worker, models.PROTECT, null=True, blank=True, related_name="tasks", db_index=False
    )
    claimed_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    objects = WorkerTaskQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                F("isolation"),
                F("priority").desc(),
                F("position"),
                F("id"),
                name="task_queue",
                condition=Q(status="queued"),
            ),
            models.Index(
                F("pool"),
                F("isolation"),
                F("priority").desc(),
                F("position"),
                F("id"),
                name="task_queue_of_pool",
                condition=Q(status="queued"),
            ),
            models.Index(fields=["worker"], name="task_of_worker", condition=Q(status="processing")),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def work(self) -> Work:
        """What the step needs to know of this attempt; a damaged line fails as a step, not as a worker."""
        step = self.step if isinstance(self.step, dict) else {}
        return Work(
            key=str(self.key),
            attempt=self.attempt,
            name=self.name,
            step_type=step.get("step_type", ""),
            config=step.get("config", {}),
            timeout_seconds=step.get("timeout_seconds"),
            execution_id=self.execution_id,
            schedule_name=step.get("schedule", ""),
            nominal_at=step.get("nominal_at"),
        )

    @classmethod
    def planned(cls, execution: Execution, *, now: datetime) -> list[WorkerTask]:
        """All tasks of a new execution: the first group queued, the rest waiting for the group before."""
        by = execution.activity
        initiator = Initiator(by.initiator_type, by.initiator_id, by.initiator_name)
        tasks = []
        for step in execution.plan["steps"]:
            status = cls.Status.QUEUED if step["index"] == execution.current_index else cls.Status.WAITING
            task = cls._of_step(step, initiator, status=status, now=now)
            task.execution, task.activity.parent = execution, execution.activity
            tasks.append(task)
        return tasks

    @classmethod
    def _of_step(
        cls, step: dict[str, Any], initiator: Initiator, *, status: str, now: datetime
    ) -> WorkerTask:
        activity = Activity(
            target_type=step["step_type"],
            target_id=step["key"],
            target_name=step["name"],
            initiator_type=initiator.type,
            initiator_id=initiator.id,
            initiator_name=initiator.name,
            task_key=uuid.UUID(step["key"]),
            step_index=step["index"],
            line=step["line"],
            created_at=now,
        )
        return cls(
            key=uuid.UUID(step["key"]),
            activity=activity,
            line=step["line"],
            step_index=step["index"],
            name=step["name"],
            step=step,
            pool=step["pool"],
            isolation=step["isolation"],
            status=status,
            available_at=now,
            created_at=now,
        )

    def _next_activity(self, now: datetime) -> Activity:
        before = self.activity
        carried = (
            "target_type",
            "target_id",
            "target_name",
            "initiator_type",
            "initiator_id",
            "initiator_name",
        )
        return Activity(
            **{name: getattr(before, name) for name in carried},
            parent_id=before.parent_id,
            retry_of=before,
            task_key=before.task_key,
            attempt=before.attempt + 1,
            step_index=before.step_index,
            line=before.line,
            created_at=now,
        )
