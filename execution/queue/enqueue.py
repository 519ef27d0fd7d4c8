"""Queue single jobs: new ones, ones with idempotency or deduplication keys, and retries of ended ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, connection, transaction
from django.db.models import Exists

from activities.models import Activity
from database.statements import fetch, update_each
from database.wake import wake
from execution.models.adhoc import JobRequest, check_own_steps, names_keys
from execution.models.limit import Limit
from execution.models.planned import Planned, add, up_to_date
from operations.initiator import Initiator
from schedules import permissions
from schedules.models import KeyReused

from .concurrency import SEPARATOR
from .finish import next_attempt

if TYPE_CHECKING:
    from execution.models.task import WorkerTask
    from execution.models.task_queryset import WorkerTaskQuerySet

# The number of the advisory lock that transactions take before they queue several jobs with keys.
KEYS = 0x6B657973


def enqueue(
    queue: WorkerTaskQuerySet,
    requests: Iterable[Mapping[str, Any]],
    *,
    initiator: Initiator,
    now: datetime,
    may: permissions.May,
) -> list[uuid.UUID]:
    """Queue a task for each request, and return the keys of the jobs.

    If requests have idempotency or deduplication keys, look for jobs with these keys first.
    """
    asked = list(requests)
    check_own_steps(asked, may)
    wanted = JobRequest.each(asked, initiator=initiator, now=now)
    if names_keys(asked):
        jobs = list(wanted)
        _enqueue_once(queue, jobs, now=now)
        return [job.key for job in jobs]
    keys: list[uuid.UUID] = []
    add(_noting(keys, wanted), now=now)
    return keys


def _noting(keys: list[uuid.UUID], jobs: Iterable[JobRequest]) -> Iterator[Planned]:
    for job in jobs:
        keys.append(job.key)
        yield job.planned


def _enqueue_once(queue: WorkerTaskQuerySet, jobs: Sequence[JobRequest], *, now: datetime) -> None:
    """Queue the jobs that do not exist yet.

    If another process is adding the same jobs, the first transaction fails, and the second one finds the
    jobs.
    """
    try:
        with transaction.atomic():
            _add_new(queue, jobs, now=now)
    except IntegrityError:
        with transaction.atomic():
            _add_new(queue, jobs, now=now)


def _add_new(queue: WorkerTaskQuerySet, jobs: Sequence[JobRequest], *, now: datetime) -> None:
    if len(jobs) > 1 and connection.vendor == "postgresql":
        # One at a time: two transactions with the same keys in a different order would wait for each other.
        fetch("SELECT 1 FROM (SELECT pg_advisory_xact_lock(%s)) AS held", [KEYS])
    keyed = {job.key for job in jobs if job.idempotency_key}
    rows = Activity.objects.filter(task_key__in=keyed, attempt=1).values_list("task_key", "details")
    known = dict(rows) if keyed else {}
    wanted = {job.dedup_key for job in jobs} - {""}
    twins = dict(queue.filter(dedup_key__in=wanted).values_list("dedup_key", "key")) if wanted else {}
    new, skipped = [], []
    for job in jobs:
        if job.key in known:
            _check_same(job, known[job.key])
        elif job.dedup_key in twins:
            skipped.append(job.skipped(twins[job.dedup_key], now))
        else:
            new.append(job)
            twins |= {job.dedup_key: job.key} if job.dedup_key else {}
        known |= {job.key: {"request": job.line["request"]}} if job.idempotency_key else {}
    add([job.planned for job in new], now=now)
    _remember([job for job in new if job.idempotency_key])
    Activity.objects.record_ended(skipped)


def _check_same(job: JobRequest, details: Any) -> None:
    first = details or {}
    asked = first.get("request") or first.get("step", {}).get("request")
    if asked != job.line["request"]:
        raise KeyReused(job.idempotency_key)


def _remember(jobs: Sequence[JobRequest]) -> None:
    """Store a fingerprint of each request, to tell a repeated request from another one with the same key."""
    if jobs:
        asked = {job.key: {"request": job.line["request"]} for job in jobs}
        rows = Activity.objects.filter(task_key__in=asked).values_list("pk", "task_key")
        update_each(Activity, ("details",), [(pk, asked[key]) for pk, key in rows if key])


def requeue(
    queue: WorkerTaskQuerySet,
    last: Activity,
    step: dict[str, Any],
    *,
    initiator: Initiator,
    now: datetime,
) -> WorkerTask:
    """Queue the next attempt of a job whose task has been deleted, with a new activity."""
    step, activity = up_to_date(step), next_attempt(last, now)
    activity.initiator_type, activity.initiator_id = initiator.type, initiator.id
    activity.initiator_name = initiator.name
    activity.save(force_insert=True)
    # Evaluated by the INSERT itself, so that no limit can be created in between.
    limited = Exists(Limit.objects.filter(pk__in=step["limit_keys"].split(SEPARATOR)))
    task = queue.create(
        key=uuid.UUID(step["key"]),
        activity=activity,
        line=step["line"],
        step_index=step["index"],
        name=step["name"],
        step=step,
        pool=step["pool"],
        isolation=step["isolation"],
        status=queue.model.Status.QUEUED,
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
