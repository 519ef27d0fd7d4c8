from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Exists, F, Min, Q
from django.urls import reverse

from activities.models import Activity, Ending
from database.statements import among, fetch, literal, update_each
from database.wake import wake
from execution import retry
from execution.queue.claim import claim
from execution.queue.concurrency import SEPARATOR
from execution.queue.handover import Freed
from execution.queue.limited import Group, is_any_open
from execution.queue.unlimited import RESERVED, Claimant, Seats
from execution.steps.step_type import Isolation
from operations.initiator import Initiator
from schedules import registry
from schedules.models import Refused

from .adhoc import Wanted, names_keys
from .attempt import Finish, Held
from .brief import LineField
from .execution import Execution
from .limit import Limit
from .planned import Planned, add, up_to_date
from .reservation import Reservation
from .worker import Worker

RECOVERED_PER_PASS = 200
# Names the lock of those who queue several jobs with keys.
KEYS = 0x6B657973
MOST_PRIORITY = 1_000
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
        return self.filter(status=literal(WorkerTask.Status.WAITING))

    def queued(self) -> WorkerTaskQuerySet:
        return self.filter(status=literal(WorkerTask.Status.QUEUED))

    def processing(self) -> WorkerTaskQuerySet:
        return self.filter(status=literal(WorkerTask.Status.PROCESSING))

    def unclaimed(self) -> WorkerTaskQuerySet:
        return self.exclude(status=WorkerTask.Status.PROCESSING)

    def live(self) -> WorkerTaskQuerySet:
        return self.exclude(status=WorkerTask.Status.WAITING)

    def lock(self) -> WorkerTaskQuerySet:
        """By id, as everybody does, so that nobody waits in a circle."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def is_claimable(
        self,
        *,
        pools: Sequence[str],
        now: datetime,
        isolations: Collection[Isolation] = ("thread", "process"),
    ) -> bool:
        """Whether a worker of these pools would get anything. What a full limit holds back is not ready."""
        ready = self.queued().filter(isolation__in=isolations)
        ready = ready.filter(pool__in=pools) if pools else ready
        reserved = Reservation.objects.filter(released_at=None).values("pool")
        unlimited = ready.filter(is_delayed=False, is_limited=False).exclude(pool__in=reserved)
        ripe = ready.filter(is_delayed=True, available_at__lte=now)
        return unlimited.exists() or ripe.exists() or is_any_open(pools, isolations)

    def queued_later(self, *, pools: Sequence[str], now: datetime) -> datetime | None:
        """When the next of the tasks that were delayed beyond this time will be ready."""
        later = self.queued().filter(is_delayed=True, available_at__gt=now)
        later = later.filter(pool__in=pools) if pools else later
        at: datetime | None = later.aggregate(at=Min("available_at"))["at"]
        return at

    def orphaned(self) -> WorkerTaskQuerySet:
        return self.processing().exclude(worker__status=Worker.Status.ALIVE)

    def enqueue(
        self, requests: Iterable[Mapping[str, Any]], *, initiator: Initiator, now: datetime
    ) -> list[uuid.UUID]:
        """Single jobs without an execution, each one's activity is its root; returns their keys.

        A request is a step, and may have a `position`, a time to be `available_at`, an `idempotency_key` (a
        repeated request names the first one's job) and a `dedup_key` (skipped while its twin has not ended).
        """
        asked = list(requests)
        wanted = Wanted.each(asked, initiator=initiator, now=now)
        if names_keys(asked):
            jobs = list(wanted)
            self._enqueue_once(jobs, now=now)
            return [job.key for job in jobs]
        keys: list[uuid.UUID] = []
        add(_noting(keys, wanted), now=now)
        return keys

    def _enqueue_once(self, jobs: Sequence[Wanted], *, now: datetime) -> None:
        """If somebody else is queueing the same at this moment, a second look finds it."""
        try:
            with transaction.atomic():
                self._add_new(jobs, now=now)
        except IntegrityError:
            with transaction.atomic():
                self._add_new(jobs, now=now)

    def _add_new(self, jobs: Sequence[Wanted], *, now: datetime) -> None:
        if len(jobs) > 1 and _is_postgresql():
            # One after the other: two that name the same keys in another order would wait for each other.
            fetch("SELECT 1 FROM (SELECT pg_advisory_xact_lock(%s)) AS held", [KEYS])
        keyed = {job.key for job in jobs if job.is_keyed}
        rows = Activity.objects.filter(task_key__in=keyed, attempt=1).values_list("task_key", "details")
        known = dict(rows) if keyed else {}
        wanted = {job.dedup_key for job in jobs} - {""}
        twins = dict(self.filter(dedup_key__in=wanted).values_list("dedup_key", "key")) if wanted else {}
        new, skipped = [], []
        for job in jobs:
            if job.key in known:
                _check_same(job, known[job.key])
            elif job.dedup_key in twins:
                skipped.append(job.skipped(twins[job.dedup_key], now))
            else:
                new.append(job)
                twins |= {job.dedup_key: job.key} if job.dedup_key else {}
            known |= {job.key: {"request": job.line["request"]}} if job.is_keyed else {}
        add([job.planned for job in new], now=now)
        self._remember([job for job in new if job.is_keyed])
        Activity.objects.record_ended(skipped)

    def _remember(self, jobs: Sequence[Wanted]) -> None:
        """What was asked for under each key, so that a repeat can be told from another request."""
        if jobs:
            asked = {job.key: {"request": job.line["request"]} for job in jobs}
            rows = Activity.objects.filter(task_key__in=asked).values_list("pk", "task_key")
            update_each(Activity, ("details",), [(pk, asked[key]) for pk, key in rows if key])

    def requeue(
        self, last: Activity, step: dict[str, Any], *, initiator: Initiator, now: datetime
    ) -> WorkerTask:
        """The next attempt of a job whose row is gone. Its activity is unique: nobody else retries it too."""
        step, activity = up_to_date(step), next_attempt(last, now)
        activity.initiator_type, activity.initiator_id = initiator.type, initiator.id
        activity.initiator_name = initiator.name
        activity.save(force_insert=True)
        # Asked by the statement that inserts it: nobody makes a limit in between.
        limited = Exists(Limit.objects.filter(pk__in=step["limit_keys"].split(SEPARATOR)))
        task = self.create(
            key=uuid.UUID(step["key"]),
            activity=activity,
            line=step["line"],
            step_index=step["index"],
            name=step["name"],
            step=step,
            pool=step["pool"],
            isolation=step["isolation"],
            status=WorkerTask.Status.QUEUED,
            priority=step["priority"],
            limit_keys=step["limit_keys"],
            is_limited=limited,
            dedup_key=step.get("dedup_key", ""),
            attempt=activity.attempt,
            available_at=now,
            created_at=now,
        )
        wake("jim_tasks")
        return task

    def claim(
        self,
        worker: Worker,
        *,
        seats: Seats,
        pools: Sequence[str],
        now: datetime,
        ahead: Seats | None = None,
        freed: Freed | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> list[Held]:
        """Takes ready tasks for a living worker: the first in order, at most as many as it has free seats.

        What nobody limits may be taken `ahead` of them, by so many more. What is `freed` by the transaction
        that this is part of need not be counted again. `clock` is asked again once the claim has its locks,
        which may take long; without it, `now` is recorded.
        """
        return claim(Claimant(worker.pk, pools, now, clock), free=seats, ahead=ahead or {}, freed=freed)

    def release(self, tasks: Sequence[Held], *, worker_id: uuid.UUID) -> set[int]:
        """Back to the queue, unstarted, as the same attempt; one that is being cancelled is not released."""
        with transaction.atomic():
            released = self._held(tasks, worker_id, extra="AND cancel_requested_at IS NULL", verb=_RELEASE)
            Activity.objects.unbegin([task.activity_id for task in tasks if task.pk in released])
            wake("jim_tasks")
        return set(released)

    def finish(
        self,
        finishes: Sequence[Finish],
        *,
        worker_id: uuid.UUID,
        now: datetime,
        then: Callable[[Freed], Sequence[Held]] = lambda freed: (),
    ) -> set[int]:
        """Ends attempts of one worker, in one transaction; returns the tasks whose outcome was accepted.

        The fence is (id, attempt, worker): what another has taken over since changes nothing. `then` claims
        for the seats that this leaves; others are told of the room, and of the tasks, that it does not take.
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
            again = [f.ending(is_last=False) for f in finishes if f.task.pk in retried]
            gone = self._end(over, again, following, worker_id)
            _keep_steps([(f.task.activity_id, f.task.step) for f in over if _is_retryable(f, gone)])
            released = Execution.objects.advance(executions, now=now)
            ended = [f.task for f in over if f.task.pk in gone and gone[f.task.pk].made_room]
            freed = Counter(group for pk in gone if (group := gone[pk].group))
            claimed = then(freed)
            if not {task.pk for task in claimed}.issuperset(released) or _leaves_room(ended, claimed):
                wake("jim_tasks")
        return retried | put_off | set(gone)

    def cancel(self, *, now: datetime, kept: Collection[int] = ()) -> int:
        """Closes what has not started, flags what runs. The caller holds the lock of the execution.

        The lines that are `kept` go on. The rows are locked before they are told apart: a release in between
        would escape both writes.
        """
        tasks = [task for task in self.lock() if task.line not in kept]
        idle = [task for task in tasks if task.status != WorkerTask.Status.PROCESSING]
        self.filter(pk__in=[task.pk for task in idle]).delete()
        for has_begun, told in (
            (False, "Cancelled before it started."),
            (True, "Cancelled while it waited."),
        ):
            ids = [task.activity_id for task in idle if (task.begun_at is not None) == has_begun]
            Activity.objects.filter(pk__in=ids).close(status=Activity.Status.CANCELLED, message=told, now=now)
        _keep_steps([(task.activity_id, task.step) for task in idle if task.execution_id is None])
        flagged = self.processing().exclude(line__in=kept)
        flagged.filter(cancel_requested_at=None).update(cancel_requested_at=now)
        return len(tasks)

    def reorder(self, keys: Sequence[uuid.UUID], *, initiator: Initiator, now: datetime) -> int:
        """These go first, in this order, among what waits in their pool with the same priority."""
        with transaction.atomic():
            # Found through their activities: the queue has no index of its own for that.
            found_ids = self.filter(activity__task_key__in=keys).values_list("pk", flat=True)
            named = self.filter(pk__in=list(found_ids))
            # Whoever ends or advances their executions writes to several of them, in no order.
            executions = Execution.objects.filter(pk__in=set(named.values_list("execution_id", flat=True)))
            list(executions.lock().values_list("pk"))
            rows = {task.key: task for task in named.unclaimed().lock()}
            found = [rows[key] for key in dict.fromkeys(keys) if key in rows]
            if len({(task.pool, task.priority) for task in found}) > 1:
                raise Refused("Only tasks of one pool and one priority can be put in order.")
            front = _front(now)
            update_each(
                WorkerTask,
                ("position",),
                [(task.pk, front + place) for place, task in enumerate(found)],
                where="t.status <> 'processing'",
            )
            Activity.objects.record_each("reorder", found, initiator=initiator, now=now)
        return len(found)

    def recover(self, *, now: datetime) -> int:
        """Ends the attempts of workers that are dead or gone, in the way a worker ends its own.

        What somebody holds is left for later: whoever froze in the middle of a write stops nobody else.
        """
        recovered = 0
        orphans = sorted(self.orphaned().values_list("pk", flat=True))
        for start in range(0, len(orphans), RECOVERED_PER_PASS):
            mine = self.orphaned().select_related("worker")
            tasks = mine.in_bulk(orphans[start : start + RECOVERED_PER_PASS]).values()
            for worker in {task.worker for task in tasks if task.worker}:
                # Whoever recovers may have read the clock before somebody else found the worker dead.
                at = max(now, worker.ended_at or now)
                for part in _apart([task for task in tasks if task.worker_id == worker.pk]):
                    recovered += len(self._recover(part, worker_id=worker.pk, now=at))
        return recovered

    def _recover(self, tasks: Sequence[WorkerTask], *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        with transaction.atomic():
            lost = [
                Finish.lost(Held.of(task), is_cancelled=task.cancel_requested_at is not None, now=now)
                for task in _free(tasks)
            ]
            return self.finish(lost, worker_id=worker_id, now=now) if lost else set()

    def abandon(self, task: Held, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
        """The last resort for an outcome that the database refuses; its execution counts as stuck then."""
        with transaction.atomic():
            gone = self._held([task], worker_id, verb=_DELETE)
            if gone:
                if gone[task.pk].made_room:
                    wake("jim_tasks")
                failed = Activity.Status.FAILED_WITH_ERROR
                ending = Ending(
                    task.activity_id, failed, now, task.claimed_at, error=error, permanently_failed=True
                )
                Activity.objects.finish([ending])
        return set(gone)

    def _end(
        self,
        over: Sequence[Finish],
        again: Sequence[Ending],
        following: Mapping[int, retry.Next],
        worker_id: uuid.UUID,
    ) -> dict[int, Gone]:
        """Deletes what this worker still holds, and ends the activities of just that, and of retries."""
        tasks = [f.task for f in over]
        if _is_postgresql() and over and not again and all(f.is_plain for f in over):
            endings = [f.ending(why_not=_why_not(f, following)) for f in over]
            fence, params = _holding(tasks, worker_id, verb=_DELETE, first="activity_id AS pk, ")
            return _gone(Activity.objects.finish_those(endings, fence=fence, params=params))
        gone = self._held(tasks, worker_id, verb=_DELETE)
        last = [
            f.ending(why_not=_why_not(f, following), cancelled=gone[f.task.pk].is_cancelled)
            for f in over
            if f.task.pk in gone
        ]
        if again or last:
            Activity.objects.finish([*again, *last])
        return gone

    def _held(
        self, tasks: Sequence[Held], worker_id: uuid.UUID, *, verb: str, extra: str = ""
    ) -> dict[int, Gone]:
        """Deletes or releases what this worker still holds."""
        return _gone(fetch(*_holding(tasks, worker_id, verb=verb, extra=extra))) if tasks else {}

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
        activities = Activity.objects.bulk_create([next_attempt(task.activity, now) for task in held])
        rows_again = [
            task._again(following[task.pk], activity, now)
            for task, activity in zip(held, activities, strict=True)
        ]
        update_each(WorkerTask, AGAIN_FIELDS, rows_again, where="t.status = 'processing'")
        if held:
            wake("jim_tasks")
        return {task.pk for task in held}


def _noting(keys: list[uuid.UUID], jobs: Iterable[Wanted]) -> Iterator[Planned]:
    for job in jobs:
        keys.append(job.key)
        yield job.planned


_DELETE = "DELETE FROM execution_workertask"
_RELEASE = "UPDATE execution_workertask SET status = 'queued', worker_id = NULL, claimed_at = NULL"


def _holding(
    tasks: Sequence[Held], worker_id: uuid.UUID, *, verb: str, extra: str = "", first: str = ""
) -> tuple[str, list[Any]]:
    """The fence: what the worker still holds of these, by (id, attempt, worker)."""
    theirs, params = among("(id, attempt)", [(task.pk, task.attempt) for task in tasks])
    held = f"{theirs} AND worker_id = %s AND status = 'processing' {extra}"
    if _is_postgresql():
        # Locked in the order of all others; a plain IN would lock them in any.
        held = f"id = ANY(ARRAY(SELECT id FROM execution_workertask WHERE {held} ORDER BY id FOR UPDATE))"
    # On SQLite nobody has to be told of room.
    made_room = f"is_limited OR pool IN ({RESERVED})" if _is_postgresql() else "FALSE"
    columns = f"{first}id, cancel_requested_at, {made_room}, is_limited, limit_keys, isolation, pool"
    return f"{verb} WHERE {held} RETURNING {columns}", [*params, _stored(worker_id)]


def _gone(rows: Sequence[Sequence[Any]]) -> dict[int, Gone]:
    # Asked here: SQLite 3.40 answers IS NOT NULL wrongly after RETURNING.
    return {
        pk: Gone(at is not None, bool(room), Group(keys, isolation, pool, True) if is_limited else None)
        for pk, at, room, is_limited, keys, isolation, pool in rows
    }


def _why_not(finish: Finish, following: Mapping[int, retry.Next]) -> str:
    nxt = following.get(finish.task.pk)
    return nxt.why_not if nxt else ""


class Gone(NamedTuple):
    """A task that its worker no longer holds; `made_room`: others may have waited for that.

    `group`: of a limited one, those who may take its place.
    """

    is_cancelled: bool
    made_room: bool
    group: Group | None


def _leaves_room(ended: Sequence[Held], claimed: Sequence[Held]) -> bool:
    """Unless what was claimed since has just the same keys, and so took it."""
    left = Counter(task.step.get("limit_keys") for task in ended)
    left.subtract(task.step.get("limit_keys") for task in claimed)
    return any(count > 0 for count in left.values())


def _check_same(job: Wanted, details: Any) -> None:
    first = details or {}
    asked = first.get("request") or first.get("step", {}).get("request")
    if asked != job.line["request"]:
        raise Refused("This idempotency key was used for another request: choose another key.")


def _is_retryable(finish: Finish, gone: Collection[int]) -> bool:
    """A single job that ended without success; a plan remembers the steps of executions."""
    failed = finish.outcome.status in Activity.FAILURES or finish.outcome.interrupted is not None
    return finish.task.execution_id is None and finish.task.pk in gone and failed


def _keep_steps(rows: Sequence[tuple[int, Any]]) -> None:
    """What a job was to run goes with its queue row; who retries it later finds it at its last activity."""
    if rows:
        update_each(Activity, ("details",), [(activity, {"step": step}) for activity, step in rows])


def _front(now: datetime) -> int:
    """Before all that was put to the front earlier, and so before all else."""
    return -int(now.timestamp() * 1_000_000)


def _stored(worker_id: uuid.UUID) -> Any:
    return worker_id if _is_postgresql() else worker_id.hex


def _apart(tasks: Sequence[WorkerTask]) -> Iterator[Sequence[WorkerTask]]:
    """Those whose type locks rows of its own when they are lost, one by one: nobody knows in which order."""
    alone = [task for task in tasks if _is_lost_alone(task)]
    yield from ([task] for task in alone)
    yield [task for task in tasks if task not in alone]


def _is_lost_alone(task: WorkerTask) -> bool:
    kind = registry.step_types.get(Held.of(task).work.step_type)
    return kind is not None and kind.is_lost_alone


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
    step = LineField(help_text="The line of the plan, frozen.")
    pool = models.CharField(max_length=40)
    isolation = models.CharField(max_length=8)
    priority = models.IntegerField(default=0)
    position = models.BigIntegerField(default=0)
    limit_keys = models.CharField(
        max_length=1_200, blank=True, help_text="What it counts for while it runs, one key per line."
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

    def get_absolute_url(self) -> str:
        """Its attempt's: that stays when the task is done."""
        return reverse("web:activity", args=[self.activity_id])

    @property
    def state(self) -> str:
        """The status as people see it."""
        return "cancelling" if self.cancel_requested_at else self.status

    def prioritise(self, priority: int, *, initiator: Initiator, now: datetime) -> bool:
        """False: it has been claimed meanwhile, and nothing changes for what runs."""
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MOST_PRIORITY:
            raise ValidationError(
                {"priority": f"A whole number from -{MOST_PRIORITY} to {MOST_PRIORITY} is expected."}
            )
        return self._change({"priority": priority}, f"Its priority is {priority}.", initiator, now)

    def move_to_front(self, *, initiator: Initiator, now: datetime) -> bool:
        return self._change({"position": _front(now)}, "It goes first.", initiator, now)

    def move_to_back(self, *, initiator: Initiator, now: datetime) -> bool:
        return self._change({"position": -_front(now)}, "It goes last.", initiator, now)

    def hasten(self, *, initiator: Initiator, now: datetime) -> bool:
        """A retry or a job that waits for its time need not wait any longer. False: it does not."""
        return self._change(
            {"is_delayed": False, "available_at": now},
            "It waits no longer.",
            initiator,
            now,
            status=self.Status.QUEUED,
            is_delayed=True,
            begun_at=None,
        )

    def _change(
        self, values: dict[str, Any], message: str, initiator: Initiator, now: datetime, **guard: Any
    ) -> bool:
        with transaction.atomic():
            if not WorkerTask.objects.unclaimed().filter(pk=self.pk, **guard).update(**values):
                return False
            Activity.objects.record("reorder", self, initiator=initiator, now=now, message=message)
            wake("jim_tasks")
        return True

    def _again(self, nxt: retry.Next, activity: Activity, now: datetime) -> tuple[Any, ...]:
        """Its key and AGAIN_FIELDS. What was put off goes on after a crash, but not after a failure."""
        assert nxt.available_at is not None
        is_delayed = nxt.available_at > now
        begun_at = self.begun_at if nxt.failures == self.failures else None
        budget = (activity.attempt, nxt.failures, nxt.crashes)
        return self.pk, "queued", None, None, *budget, nxt.available_at, is_delayed, activity.pk, begun_at


def next_attempt(before: Activity, now: datetime) -> Activity:
    carried = (
        "target_type",
        "target_id",
        "target_name",
        "initiator_type",
        "initiator_id",
        "initiator_name",
        "parent_id",
        "task_key",
        "step_index",
        "line",
    )
    return Activity(
        **{name: getattr(before, name) for name in carried},
        retry_of=before,
        attempt=before.attempt + 1,
        created_at=now,
    )
