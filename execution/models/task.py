from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.db import connection, models, transaction
from django.db.models import F, Min, Q

from activities.models import Activity, Ending, Initiator
from activities.statements import among, fetch, update_each
from activities.wake import wake
from execution import retry
from execution.binding import note
from execution.concurrency import limit_keys
from execution.steps.base import Isolation
from schedules.models import Step
from schedules.models.step import config_invalid
from schedules.registry import ConfigError, step_types

from .attempt import Finish, Held
from .claim import claim
from .execution import Execution
from .planned import AT_ONCE, Planned, add
from .worker import Worker

RECOVERED_PER_PASS = 200
AGAIN_FIELDS = (
    "status",
    "worker",
    "claimed_at",
    "attempt",
    "failures",
    "crashes",
    "available_at",
    "is_delayed",
    "activity",
    "begun_at",
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
        ready = self.queued().filter(isolation__in=isolations)
        ready = ready.filter(Q(is_delayed=False) | Q(is_delayed=True, available_at__lte=now))
        return ready.filter(pool__in=pools) if pools else ready

    def queued_later(self, *, pools: Sequence[str], now: datetime) -> datetime | None:
        """When the next of the tasks that were delayed beyond this time will be ready."""
        later = self.queued().filter(is_delayed=True, available_at__gt=now)
        later = later.filter(pool__in=pools) if pools else later
        at: datetime | None = later.aggregate(at=Min("available_at"))["at"]
        return at

    def orphaned(self) -> WorkerTaskQuerySet:
        return self.processing().exclude(worker__status=Worker.Status.ALIVE)

    def enqueue(
        self, steps: Iterable[Mapping[str, Any]], *, initiator: Initiator, now: datetime
    ) -> list[uuid.UUID]:
        """Single jobs without an execution, each one's activity is its root; returns their keys."""
        lines = [_adhoc_line(step, now=now) for step in steps]
        planned = [Planned(line, initiator) for line in lines]
        if len(planned) <= AT_ONCE:
            add(planned, now=now)
        else:
            with transaction.atomic():
                add(planned, now=now)
        return [uuid.UUID(line["key"]) for line in lines]

    def claim(
        self, worker: Worker, *, seats: Mapping[Isolation, int], pools: Sequence[str], now: datetime
    ) -> list[Held]:
        """Takes ready tasks for a living worker: the first in order, at most as many as it has seats."""
        free = {isolation: size for isolation, size in seats.items() if size > 0}
        return claim(worker.pk, free=free, pools=pools, now=now) if free else []

    def release(self, tasks: Sequence[Held], *, worker_id: uuid.UUID) -> set[int]:
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
        with transaction.atomic(savepoint=False):
            ids = {f.task.execution_id for f in finishes if f.task.execution_id is not None}
            executions = Execution.objects.hold(sorted(ids)) if ids else []
            following = {f.task.pk: nxt for f in finishes if (nxt := f.next(now)) is not None}
            retried = self._retry(
                [f for f in finishes if _is_again(following.get(f.task.pk))], following, worker_id, now
            )
            put_off = self._put_off([f for f in finishes if f.outcome.again_at], worker_id)
            over = [f for f in finishes if f.task.pk not in retried | put_off]
            gone = self._held([f.task for f in over], worker_id, verb=_DELETE)
            endings = [f.ending(is_last=False) for f in finishes if f.task.pk in retried]
            for f in over:
                if f.task.pk in gone:
                    nxt = following.get(f.task.pk)
                    endings.append(f.ending(why_not=nxt.why_not if nxt else "", cancelled=gone[f.task.pk]))
            if endings:
                Activity.objects.finish(endings)
            Execution.objects.advance(executions, now=now)
        return retried | put_off | set(gone)

    def cancel(self, *, now: datetime) -> None:
        """Closes what has not started, flags what runs. The caller holds the execution's lock.

        The rows are locked before they are told apart: a release in between would escape both writes.
        """
        tasks = list(self.lock())
        idle = [task for task in tasks if task.status != WorkerTask.Status.PROCESSING]
        self.filter(pk__in=[task.pk for task in idle]).delete()
        for has_begun, told in (
            (False, "Cancelled before it started."),
            (True, "Cancelled while it waited."),
        ):
            ids = [task.activity_id for task in idle if (task.begun_at is not None) == has_begun]
            Activity.objects.filter(pk__in=ids).close(status=Activity.Status.CANCELLED, message=told, now=now)
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
            lost = [Finish.lost(Held.of(task), now=now) for task in _free(tasks)]
            return self.finish(lost, worker_id=worker_id, now=now) if lost else set()

    def abandon(self, task: Held, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """The last resort for an outcome that the database refuses; its execution counts as stuck then."""
        with transaction.atomic():
            gone = self._held([task], worker_id, verb=_DELETE)
            if gone:
                failed = Activity.Status.FAILED_WITH_ERROR
                Activity.objects.finish([Ending(task.activity_id, failed, now, task.claimed_at, error=error)])
        return set(gone)

    def _held(
        self, tasks: Sequence[Held], worker_id: uuid.UUID, *, verb: str, extra: str = ""
    ) -> dict[int, bool]:
        """Deletes or releases what this worker still holds; tells of each whether it was being cancelled."""
        if not tasks:
            return {}
        theirs, params = among("(id, attempt)", [(task.pk, task.attempt) for task in tasks])
        held = f"{theirs} AND worker_id = %s AND status = 'processing' {extra}"
        if _is_postgresql():
            # Locked in the order of all others; a plain IN would lock them in any.
            held = f"id = ANY(ARRAY(SELECT id FROM execution_workertask WHERE {held} ORDER BY id FOR UPDATE))"
        sql = f"{verb} WHERE {held} RETURNING id, cancel_requested_at"
        # Asked here: SQLite 3.40 answers IS NOT NULL wrongly after RETURNING.
        return {pk: at is not None for pk, at in fetch(sql, [*params, _stored(worker_id)])}

    def _put_off(self, finishes: Sequence[Finish], worker_id: uuid.UUID) -> set[int]:
        """The same attempt, queued until its time comes; one that is being cancelled is not put off."""
        if not finishes:
            return set()
        by_task = {f.task.pk: f for f in finishes}
        rows = self.filter(pk__in=by_task, worker=worker_id, cancel_requested_at=None).processing()
        held = [by_task[task.pk] for task in rows.lock() if task.attempt == by_task[task.pk].task.attempt]
        update_each(
            WorkerTask,
            ("status", "worker", "claimed_at", "available_at", "is_delayed", "begun_at"),
            [
                (f.task.pk, "queued", None, None, f.outcome.again_at, True, f.outcome.executed_at)
                for f in held
            ],
        )
        Activity.objects.put_off(
            [(f.task.activity_id, f.outcome.executed_at, f.outcome.message) for f in held]
        )
        wake("jim_tasks")
        return {f.task.pk for f in held}

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
        rows_again = [
            task._again(following[task.pk], activity, now)
            for task, activity in zip(held, activities, strict=True)
        ]
        update_each(WorkerTask, AGAIN_FIELDS, rows_again, where="t.status = 'processing'")
        if held:
            wake("jim_tasks")
        return {task.pk for task in held}


_DELETE = "DELETE FROM execution_workertask"
_RELEASE = "UPDATE execution_workertask SET status = 'queued', worker_id = NULL, claimed_at = NULL"


def _stored(worker_id: uuid.UUID) -> Any:
    return worker_id if _is_postgresql() else worker_id.hex


def _free(tasks: Sequence[WorkerTask]) -> list[WorkerTask]:
    """Those that nobody holds, nor their execution or activity; they are locked from now on."""
    ids = {task.execution_id for task in tasks if task.execution_id is not None}
    executions = [execution.pk for execution in Execution.objects.lock(skip_locked=True).filter(pk__in=ids)]
    rows = WorkerTask.objects.processing().filter(pk__in=[t.pk for t in tasks]).select_related("activity")
    rows = rows.filter(Q(execution=None) | Q(execution__in=executions)).order_by("pk")
    return list(rows.select_for_update(of=("self", "activity"), no_key=True, skip_locked=True))


def _is_again(nxt: retry.Next | None) -> bool:
    return nxt is not None and nxt.available_at is not None


def _is_postgresql() -> bool:
    return connection.vendor == "postgresql"


def _adhoc_line(step: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    frame = {name: value for name, value in step.items() if name != "config"}
    try:
        checked = _checked(tuple(frame.items()))
    except TypeError:  # something in it has no hash; the check will say what is wrong with it
        checked = _checked.__wrapped__(tuple(frame.items()))
    kind = step_types[checked["step_type"]]
    try:
        config = kind.clean(step.get("config", {}))
    except ConfigError as error:
        raise config_invalid(error) from error
    line = checked | {
        "config": config,
        "limit_keys": limit_keys(checked),
        "line": 0,
        "key": str(uuid.uuid4()),
        "isolation": kind.isolation(config),
        "schedule": "",
        "nominal_at": None,
    }
    note([line], schedule=None, now=now)
    if "refs" in line:
        Step(**(dict(step) | {"config": config})).check_alone()
    return line


@lru_cache(maxsize=256)
def _checked(frame: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """All of a step but its config. Jobs come in thousands of the same kind: each kind is checked once."""
    step = Step(**dict(frame))
    step.clean_fields(exclude=["schedule", "config"])
    step.clean_frame()
    return step.as_json()


class WorkerTask(models.Model):
    """The queue row of one step, for its whole life, retries included; deleted when its work is done."""

    class Status(models.TextChoices):
        WAITING = "waiting"
        QUEUED = "queued"
        PROCESSING = "processing"

    # Unique, as its activities see to it; found through them as well.
    key = models.UUIDField()
    execution = models.ForeignKey(
        Execution, models.CASCADE, null=True, blank=True, related_name="tasks", db_index=False
    )
    activity = models.ForeignKey(Activity, models.PROTECT, related_name="+")
    line = models.PositiveIntegerField()
    step_index = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    step = models.JSONField(help_text="The line of the plan, frozen.")
    pool = models.CharField(max_length=40)
    isolation = models.CharField(max_length=8)
    priority = models.IntegerField(default=0)
    position = models.BigIntegerField(default=0)
    limit_keys = models.CharField(
        max_length=500, blank=True, help_text="What it counts for while it runs, one key per line."
    )
    is_limited = models.BooleanField(default=False, help_text="There is a limit for one of its keys.")
    dedup_key = models.CharField(
        max_length=200, blank=True, help_text="Of a job: no other with the same key is queued meanwhile."
    )
    status = models.CharField(max_length=10, choices=Status.choices)
    attempt = models.PositiveIntegerField(default=1)
    failures = models.PositiveIntegerField(default=0)
    crashes = models.PositiveIntegerField(default=0)
    available_at = models.DateTimeField()
    is_delayed = models.BooleanField(default=False, help_text="Not ready before `available_at`.")
    worker = models.ForeignKey(
        Worker,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="tasks",
        db_index=False,
        # A claim looks at its worker once; the database would do so again for each of its tasks.
        db_constraint=False,
    )
    claimed_at = models.DateTimeField(null=True, blank=True)
    begun_at = models.DateTimeField(null=True, blank=True, help_text="Of an attempt that put itself off.")
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
                condition=Q(status="queued", is_delayed=False, is_limited=False),
            ),
            models.Index(
                F("pool"),
                F("isolation"),
                F("priority").desc(),
                F("position"),
                F("id"),
                name="task_queue_of_pool",
                condition=Q(status="queued", is_delayed=False, is_limited=False),
            ),
            models.Index(
                F("limit_keys"),
                F("isolation"),
                F("pool"),
                F("priority").desc(),
                F("position"),
                F("id"),
                name="task_queue_limited",
                condition=Q(status="queued", is_delayed=False, is_limited=True),
            ),
            models.Index(
                fields=["available_at"],
                name="task_delayed",
                condition=Q(status="queued", is_delayed=True),
            ),
            models.Index(
                fields=["execution"], name="task_of_execution", condition=Q(execution__isnull=False)
            ),
            models.Index(fields=["worker"], name="task_of_worker", condition=Q(status="processing")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["dedup_key"], name="task_dedup", condition=~Q(dedup_key="")),
        ]

    def __str__(self) -> str:
        return self.name

    def _again(self, nxt: retry.Next, activity: Activity, now: datetime) -> tuple[Any, ...]:
        """Its key and AGAIN_FIELDS. What was put off goes on after a crash, but not after a failure."""
        assert nxt.available_at is not None
        is_delayed = nxt.available_at > now
        begun_at = self.begun_at if nxt.failures == self.failures else None
        budget = (activity.attempt, nxt.failures, nxt.crashes)
        return self.pk, "queued", None, None, *budget, nxt.available_at, is_delayed, activity.pk, begun_at

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
