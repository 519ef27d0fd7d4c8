"""End what a crash left behind, with the same operations as in normal work."""

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
    """Mark workers of this data folder as dead if their process is gone, even if their lease is still valid.

    Return how many workers were marked. Processes of steps that outlived their worker are killed first.
    """
    if orphans := lifeline.end_orphans():
        logger.warning("ended %d processes that outlived their worker: %s", len(orphans), orphans)
    buried = 0
    for worker_id, path in lifeline.proven_dead():
        buried += Worker.objects.filter(pk=worker_id).bury(now=now)
        path.unlink(missing_ok=True)
        logger.warning("worker %s died; its tasks are recovered", worker_id)
    return buried


def bury_expired(now: datetime) -> int:
    """Mark workers as dead if their lease has ended, unless schedulers have just resumed after an outage.

    Return how many workers were marked. After an outage, all leases may have ended although the workers are
    alive, so the workers get the time of one more lease to renew theirs.
    """
    outage = timedelta(seconds=settings.JIM_LEASE_SECONDS * 0.75)
    steady_since = Chore.objects.tick(outage=outage, now=now)
    if now - steady_since < lease():
        return 0
    buried = Worker.objects.expired(now).bury(now=now)
    if buried:
        logger.warning("%d workers did not renew their lease; their tasks are recovered", buried)
    return buried


def next_look(now: datetime) -> datetime:
    """Return when to look for lost work again: when the next lease ends, or soon if tasks are still orphaned.

    Each heartbeat postpones the end of a lease, so this is usually half a lease from now.
    """
    soonest, latest = now + lease() / 12, now + lease() / 2
    if WorkerTask.objects.orphaned().exists():
        return soonest
    ends: datetime | None = Worker.objects.alive().aggregate(at=Min("lease_until"))["at"]
    return latest if ends is None else min(max(ends + AN_INSTANT, soonest), latest)


def recover(now: datetime) -> None:
    """Recover expired reservations, orphaned tasks and stuck executions.

    An error with one of them does not prevent the recovery of the others.
    """
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
    """Release the seats of direct requests whose lease has ended.

    An error with one seat does not prevent the release of the others.
    """
    for reservation in list(Reservation.objects.lapsed(now)):
        try:
            if reservation.lapse(now):
                logger.warning("direct request %s did not renew its lease; its seat is free", reservation)
        except AWAY:
            raise
        except Exception:
            logger.exception("reservation %s cannot be expired; it will be tried again", reservation)


def _recover_one_by_one(now: datetime) -> None:
    for pk in list(WorkerTask.objects.orphaned().values_list("pk", flat=True)):
        try:
            WorkerTask.objects.filter(pk=pk).recover(now=now)
        except AWAY:
            raise
        except Exception:
            logger.exception("task %s cannot be recovered", pk)
