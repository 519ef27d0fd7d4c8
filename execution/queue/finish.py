"""Finish, release or abandon the tasks of a worker.

The fence of all three is (id, attempt, worker): tasks that another worker has taken over are left alone.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction

from activities.models import Activity, Ending
from database.statements import update_each
from database.wake import wake
from execution import retry
from execution.models.attempt import ClaimedTask, Finish
from execution.models.execution import Execution

from . import postgresql
from .claim import claim
from .dialect import dialect
from .request import ClaimRequest, Freed, Row, TaskGroup

if TYPE_CHECKING:
    from execution.models.task import WorkerTask
    from execution.models.task_queryset import WorkerTaskQuerySet

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


class Finished(NamedTuple):
    """The ids of the tasks whose outcomes were accepted, and the tasks claimed in the same transaction."""

    accepted: set[int]
    claimed: list[ClaimedTask]


def finish(
    queue: WorkerTaskQuerySet,
    finishes: Sequence[Finish],
    *,
    worker_id: uuid.UUID,
    now: datetime,
    claims: Callable[[], ClaimRequest | None],
) -> Finished:
    """Queue retried and postponed tasks again, end the others, advance executions, and claim new tasks."""
    with transaction.atomic(savepoint=False):
        ids = {f.task.execution_id for f in finishes if f.task.execution_id is not None}
        executions = Execution.objects.lock_and_read(sorted(ids)) if ids else []
        following = {f.task.pk: nxt for f in finishes if (nxt := f.next(now)) is not None}
        retried = _retry(
            queue, [f for f in finishes if _is_again(following.get(f.task.pk))], following, worker_id, now
        )
        put_off = _put_off(queue, [f for f in finishes if f.outcome.again_at], worker_id)
        over = [f for f in finishes if f.task.pk not in retried | put_off]
        again = [f.ending(is_last=False) for f in finishes if f.task.pk in retried]
        gone = _end(over, again, following, worker_id)
        keep_steps([(f.task.activity_id, f.task.step) for f in over if _is_retryable(f, gone)])
        released = Execution.objects.advance(executions, now=now)
        request = claims()
        claimed = claim(request, freed=_freed(gone)) if request else []
        ended = [f.task for f in over if f.task.pk in gone and gone[f.task.pk].made_room]
        if not {task.pk for task in claimed}.issuperset(released) or _leaves_room(ended, claimed):
            wake("jim_tasks")
    return Finished(retried | put_off | set(gone), claimed)


def _freed(gone: Mapping[int, LetGo]) -> Freed:
    """Count the ended tasks that had a limit, by group. The next tasks of each group can take their slots."""
    return Counter(each.group for each in gone.values() if each.group)


def _is_again(nxt: retry.Next | None) -> bool:
    return nxt is not None and nxt.available_at is not None


def _retry(
    queue: WorkerTaskQuerySet,
    finishes: Sequence[Finish],
    following: Mapping[int, retry.Next],
    worker_id: uuid.UUID,
    now: datetime,
) -> set[int]:
    """Queue tasks again for their next attempts, each with a new activity; return the ids of the tasks.

    Tasks that are being cancelled, or that this worker no longer holds, are left alone.
    """
    if not finishes:
        return set()
    attempts = {f.task.pk: f.task.attempt for f in finishes}
    rows = queue.filter(pk__in=attempts, worker=worker_id, cancel_requested_at=None).processing()
    held = [task for task in rows.lock().select_related("activity") if task.attempt == attempts[task.pk]]
    activities = Activity.objects.bulk_create([next_attempt(task.activity, now) for task in held])
    rows_again = [
        _again(task, following[task.pk], activity, now)
        for task, activity in zip(held, activities, strict=True)
    ]
    update_each(queue.model, AGAIN_FIELDS, rows_again, where="t.status = 'processing'")
    if held:
        wake("jim_tasks")
    return {task.pk for task in held}


def _again(task: WorkerTask, nxt: retry.Next, activity: Activity, now: datetime) -> tuple[Any, ...]:
    """Return the id of a task and the new values of AGAIN_FIELDS.

    After a crash, a step that had postponed itself continues, so it keeps `begun_at`. After a failure, it
    starts from the beginning.
    """
    assert nxt.available_at is not None
    is_delayed = nxt.available_at > now
    begun_at = task.begun_at if nxt.failures == task.failures else None
    budget = (activity.attempt, nxt.failures, nxt.crashes)
    return task.pk, "queued", None, None, *budget, nxt.available_at, is_delayed, activity.pk, begun_at


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


def _put_off(queue: WorkerTaskQuerySet, finishes: Sequence[Finish], worker_id: uuid.UUID) -> set[int]:
    """Queue postponed tasks again as the same attempts, for a later time; return the ids of the tasks.

    Tasks that are being cancelled, or that this worker no longer holds, are left alone.
    """
    if not finishes:
        return set()
    by_task = {f.task.pk: f for f in finishes}
    rows = queue.filter(pk__in=by_task, worker=worker_id, cancel_requested_at=None).processing()
    held = [by_task[task.pk] for task in rows.lock() if task.attempt == by_task[task.pk].task.attempt]
    update_each(
        queue.model,
        ("status", "worker", "claimed_at", "available_at", "is_delayed", "begun_at"),
        [(f.task.pk, "queued", None, None, f.outcome.again_at, True, f.outcome.executed_at) for f in held],
    )
    Activity.objects.put_off([(f.task.activity_id, f.outcome.executed_at, f.outcome.message) for f in held])
    wake("jim_tasks")
    return {f.task.pk for f in held}


def _end(
    over: Sequence[Finish],
    again: Sequence[Ending],
    following: Mapping[int, retry.Next],
    worker_id: uuid.UUID,
) -> dict[int, LetGo]:
    """End the tasks that this worker still holds, and return them by id.

    The rows of these tasks are deleted. Their activities are ended together with those of retried attempts,
    whose endings are in `again`.
    """
    tasks = [f.task for f in over]
    if dialect() is postgresql and over and not again and all(f.is_plain for f in over):
        endings = [f.ending(why_not=_why_not(f, following)) for f in over]
        fence, params = postgresql.DELETE_HELD_BY_ACTIVITY, postgresql.held_params(tasks, worker_id)
        return _let_go(Activity.objects.finish_those(endings, fence=fence, params=params))
    gone = _delete_held(tasks, worker_id)
    last = [
        f.ending(why_not=_why_not(f, following), cancelled=gone[f.task.pk].is_cancelled)
        for f in over
        if f.task.pk in gone
    ]
    if again or last:
        Activity.objects.finish([*again, *last])
    return gone


def _why_not(finish: Finish, following: Mapping[int, retry.Next]) -> str:
    nxt = following.get(finish.task.pk)
    return nxt.why_not if nxt else ""


def _is_retryable(finish: Finish, gone: Collection[int]) -> bool:
    """Return whether a single job ended without success, so that its step has to be kept for a retry.

    The steps of an execution are kept in its plan anyway.
    """
    failed = finish.outcome.status in Activity.FAILURES or finish.outcome.interrupted is not None
    return finish.task.execution_id is None and finish.task.pk in gone and failed


def keep_steps(rows: Sequence[tuple[int, Any]]) -> None:
    """Store the steps of jobs in their last activities, for later retries, because the tasks are deleted.

    A row is (activity id, step).
    """
    if rows:
        update_each(Activity, ("details",), [(activity, {"step": step}) for activity, step in rows])


def _leaves_room(ended: Sequence[ClaimedTask], claimed: Sequence[ClaimedTask]) -> bool:
    """Return whether ended tasks left room that the claimed tasks with the same limit keys did not fill."""
    left = Counter(task.step.get("limit_keys") for task in ended)
    left.subtract(task.step.get("limit_keys") for task in claimed)
    return any(count > 0 for count in left.values())


def release(tasks: Sequence[ClaimedTask], *, worker_id: uuid.UUID) -> set[int]:
    """Put the unstarted tasks that this worker still holds back into the queue, and return their ids."""
    with transaction.atomic():
        released = _let_go(dialect().release_held(tasks, worker_id)) if tasks else {}
        Activity.objects.unbegin([task.activity_id for task in tasks if task.pk in released])
        wake("jim_tasks")
    return set(released)


def abandon(task: ClaimedTask, error: str, *, worker_id: uuid.UUID, now: datetime) -> set[int]:
    """Delete the task and fail its activity, without advancing its execution.

    Return a set with the id of the task, or an empty set if the worker no longer held the task.
    """
    with transaction.atomic():
        gone = _delete_held([task], worker_id)
        if gone:
            if gone[task.pk].made_room:
                wake("jim_tasks")
            failed = Activity.Status.FAILED_WITH_ERROR
            ending = Ending(
                task.activity_id, failed, now, task.claimed_at, error=error, permanently_failed=True
            )
            Activity.objects.finish([ending])
    return set(gone)


class LetGo(NamedTuple):
    """A task that no longer belongs to its worker.

    `is_cancelled`: whether a cancel was requested. `made_room`: whether other tasks may have waited for the
    end of this one. `group`: if the task has a limit, the group of tasks that can take its slot.
    """

    is_cancelled: bool
    made_room: bool
    group: TaskGroup | None


def _delete_held(tasks: Sequence[ClaimedTask], worker_id: uuid.UUID) -> dict[int, LetGo]:
    return _let_go(dialect().delete_held(tasks, worker_id)) if tasks else {}


def _let_go(rows: Sequence[Row]) -> dict[int, LetGo]:
    return {
        pk: LetGo(at is not None, bool(room), TaskGroup(keys, isolation, pool, True) if is_limited else None)
        for pk, at, room, is_limited, keys, isolation, pool in rows
    }
