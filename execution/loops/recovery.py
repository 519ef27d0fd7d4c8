"""The safety nets: what a crash left behind is ended with the verbs of the happy path."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Min

from database.statements import AWAY
from execution.children import lifeline
from execution.models import Chore, Execution, Reservation, Worker, WorkerTask
from execution.models.worker import lease

# A lease that ends at this very instant has not ended yet.
AN_INSTANT = timedelta(milliseconds=10)
logger = logging.getLogger(__name__)


def bury_proven_dead(now: datetime) -> int:
    """Workers of this data folder whose process is known to be gone: no need to wait for their lease."""
    if orphans := lifeline.end_orphans():
        logger.warning("ended %d processes that outlived their worker: %s", len(orphans), orphans)
    buried = 0
    for worker_id, path in lifeline.proven_dead():
        buried += Worker.objects.filter(pk=worker_id).bury(now=now)
        path.unlink(missing_ok=True)
        logger.warning("worker %s died; its tasks are recovered", worker_id)
    return buried


def bury_expired(now: datetime) -> int:
    """Workers that did not beat for a lease, unless it was the recoverers themselves who were away.

    After an outage every lease has expired, though its worker may be alive: it gets one more to beat again.
    """
    outage = timedelta(seconds=settings.JIM_LEASE_SECONDS * 0.75)
    steady_since = Chore.objects.tick(outage=outage, now=now)
    if now - steady_since < lease():
        return 0
    buried = Worker.objects.expired(now).bury(now=now)
    if buried:
        logger.warning("%d workers did not beat for a lease; their tasks are recovered", buried)
    return buried


def next_look(now: datetime) -> datetime:
    """When recovery may have something to do again: when the next lease ends, soon if something is left over.

    Workers that beat move the end of their leases, so among them this is half a lease from now.
    """
    soonest, latest = now + lease() / 12, now + lease() / 2
    if WorkerTask.objects.orphaned().exists():
        return soonest
    ends: datetime | None = Worker.objects.alive().aggregate(at=Min("lease_until"))["at"]
    return latest if ends is None else min(max(ends + AN_INSTANT, soonest), latest)


def recover(now: datetime) -> None:
    """Recover lapsed reservations, orphaned tasks and stuck executions. One bad row stops no other."""
    expire_reservations(now)
    try:
        WorkerTask.objects.recover(now=now)
    except AWAY:
        raise
    except Exception:
        logger.exception("recovering tasks failed; trying them one by one")
        _recover_one_by_one(now)
    Execution.objects.recover(now=now)


def expire_reservations(now: datetime) -> None:
    """Release the seats of direct requests whose process is gone."""
    try:
        expired = Reservation.objects.expire(now)
    except AWAY:
        raise
    except Exception:
        logger.exception("reservations cannot be expired; the next look tries again")
    else:
        if expired:
            logger.warning("%d direct requests did not beat for a lease; their seats are free", expired)


def _recover_one_by_one(now: datetime) -> None:
    for pk in list(WorkerTask.objects.orphaned().values_list("pk", flat=True)):
        try:
            WorkerTask.objects.filter(pk=pk).recover(now=now)
        except AWAY:
            raise
        except Exception:
            logger.exception("task %s cannot be recovered", pk)
