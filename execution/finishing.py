"""Outcomes reach the database, whatever it takes: none may leave its own activity in progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from django.db import DatabaseError, connection
from django.db.models import F

from activities.statements import AWAY

from .models import Worker, WorkerTask
from .models.task import Finish

logger = logging.getLogger(__name__)


def finish(finishes: Sequence[Finish], *, worker_id: UUID, now: datetime) -> None:
    """One transaction for all; if the database refuses it, one by one. Raises only if it is away."""
    try:
        accepted = WorkerTask.objects.finish(finishes, worker_id=worker_id, now=now)
    except AWAY:
        raise
    except DatabaseError:
        logger.exception("a batch of %d outcomes was refused; trying them one by one", len(finishes))
        accepted = set()
        for one in finishes:
            accepted |= _finish_one(one, worker_id=worker_id, now=now)
    stale = [f.task for f in finishes if f.task.pk not in accepted]
    if stale:
        _count_stale(stale, worker_id)


def still_held(finishes: Sequence[Finish], *, worker_id: UUID) -> list[Finish]:
    """After an error at COMMIT: those whose outcome was not recorded after all."""
    rows = WorkerTask.objects.processing().filter(pk__in=[f.task.pk for f in finishes], worker=worker_id)
    held = set(rows.values_list("pk", "attempt"))
    return [f for f in finishes if (f.task.pk, f.task.attempt) in held]


def _finish_one(one: Finish, *, worker_id: UUID, now: datetime) -> set[int]:
    """Three levels: the outcome itself, a bare failure, a bare failure on a fresh connection."""
    levels: tuple[Callable[[Exception | None], Finish], ...] = (
        lambda _: one,
        lambda error: _bare(one, error),
        lambda error: _bare(one, error, fresh=True),
    )
    refusal: Exception | None = None
    for level in levels:
        try:
            return WorkerTask.objects.finish([level(refusal)], worker_id=worker_id, now=now)
        except AWAY:
            raise
        except DatabaseError as error:
            refusal = error
            logger.error("the outcome of task %s was refused: %s", one.task.pk, error)
    return {one.task.pk}


def _bare(one: Finish, error: Exception | None, *, fresh: bool = False) -> Finish:
    if fresh:
        connection.close()
    reason = str(error).encode("ascii", "replace").decode().replace("\x00", "")[:500]
    outcome = replace(
        one.outcome,
        status="failed_with_error",
        message="",
        error=f"The database refused the outcome: {reason}",
        traceback="",
        result=None,
        can_retry=False,
    )
    return replace(one, outcome=outcome)


def _count_stale(tasks: Sequence[WorkerTask], worker_id: UUID) -> None:
    for task in tasks:
        logger.warning("stale outcome refused: task %s, attempt %d", task.key, task.attempt)
    Worker.objects.filter(pk=worker_id).update(stale_refused=F("stale_refused") + len(tasks))
