"""Write outcomes to the database, whatever happens: no activity may stay in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

from database.statements import AWAY
from execution.models import Execution, Worker, WorkerTask
from execution.models.attempt import ClaimedTask, Finish
from execution.queue.request import ClaimRequest

logger = logging.getLogger(__name__)


def finish(
    finishes: Sequence[Finish],
    *,
    worker_id: UUID,
    now: datetime,
    claims: Callable[[], ClaimRequest | None] = lambda: None,
    start: Callable[[list[ClaimedTask]], None] = lambda claimed: None,
) -> list[ClaimedTask]:
    """Write all outcomes and claim new tasks in one transaction; if this fails, write outcomes one by one.

    `claims` returns the request for new tasks, or None to claim none. The claimed tasks are passed to
    `start`, and returned. Raise an exception only if the database is unavailable.
    """
    claimed: list[ClaimedTask] = []
    try:
        with transaction.atomic():
            # Registered first, so that claimed tasks do not wait for the accounting of ended executions.
            transaction.on_commit(lambda: start(claimed))
            finished = WorkerTask.objects.finish(finishes, worker_id=worker_id, now=now, claims=claims)
            accepted = finished.accepted
            claimed += finished.claimed
    except AWAY:
        raise
    except Exception:
        logger.exception("a batch of %d outcomes was refused; trying them one by one", len(finishes))
        accepted = set()
        claimed.clear()
        for one in finishes:
            accepted |= _finish_one(one, worker_id=worker_id, now=now)
    stale = [f.task for f in finishes if f.task.pk not in accepted]
    if stale:
        _count_stale(stale, worker_id)
    return claimed


def still_held(finishes: Sequence[Finish], *, worker_id: UUID) -> list[Finish]:
    """Return the attempts that the worker still holds: their outcomes were not recorded.

    Call this after COMMIT has reported an error, as the transaction may have succeeded all the same.
    """
    rows = WorkerTask.objects.processing().filter(pk__in=[f.task.pk for f in finishes], worker=worker_id)
    held = set(rows.values_list("pk", "attempt"))
    return [f for f in finishes if (f.task.pk, f.task.attempt) in held]


def _finish_one(one: Finish, *, worker_id: UUID, now: datetime) -> set[int]:
    """Record one outcome, and return the id of its task in a set.

    Return an empty set if the worker had lost the task. If the database refuses the outcome, record a plain
    failure instead. If the database refuses that as well, abandon the task.
    """
    try:
        with transaction.atomic():
            return WorkerTask.objects.finish([one], worker_id=worker_id, now=now).accepted
    except AWAY:
        raise
    except Exception as error:
        logger.exception("the outcome of task %s was refused", one.task.pk)
        failure = bare(one, error)
    try:
        with transaction.atomic():
            return WorkerTask.objects.finish([failure], worker_id=worker_id, now=now).accepted
    except AWAY:
        raise
    except Exception:
        logger.exception("even the bare failure of task %s was refused", one.task.pk)
        connection.close()
        refusal = failure.outcome.error
        abandoned = WorkerTask.objects.abandon(one.task, refusal, worker_id=worker_id, now=now)
        if one.task.execution_id is not None:
            Execution.objects.filter(pk=one.task.execution_id).recover(now=now)
        return abandoned


def bare(one: Finish, error: Exception) -> Finish:
    """Return the attempt with a plain failure in place of an outcome that the database has refused."""
    outcome = replace(
        one.outcome,
        status="failed_with_error",
        message="",
        error=f"The database refused the outcome: {_plain(error)}",
        traceback="",
        result=None,
        can_retry=False,
        again_at=None,
    )
    return replace(one, outcome=outcome)


def _plain(error: Exception) -> str:
    return str(error).encode("ascii", "replace").decode().replace("\x00", "")[:500]


def _count_stale(tasks: Sequence[ClaimedTask], worker_id: UUID) -> None:
    for task in tasks:
        logger.warning("stale outcome refused: task %s, attempt %d", task.work.key, task.attempt)
    Worker.objects.filter(pk=worker_id).update(stale_refused=F("stale_refused") + len(tasks))
