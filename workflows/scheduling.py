"""The scheduler's work for workflows: start what is due, recover after a crash, prune what is old.

A publication or a commit starts the next run immediately, without the scheduler.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import BigIntegerField, Exists, OuterRef
from django.db.models.functions import Cast

from activities.models import Activity
from database.statements import AWAY
from database.wake import wake
from execution.loops.housekeeping import BATCH
from schedules.models import Occurrence

from .models import Event, EventTrigger, Run, Workflow
from .steps import end_unperformed

STARTED_PER_TICK = 200
# The rule of `WorkflowQuerySet.due` as SQL, by which the scheduler checks whether `start_due` has work.
IS_DUE = f"""
    SELECT 1 FROM workflows_workflow w
    WHERE w.status = '{Workflow.Status.ACTIVE.value}' AND w.due_at <= %(now)s
        AND NOT EXISTS (SELECT 1 FROM workflows_run r
            WHERE r.workflow_id = w.id AND r.status = 'active' AND r.settled_at IS NULL)
"""
NEXT_AT = f"""
    SELECT min(due_at) FROM workflows_workflow
    WHERE status = '{Workflow.Status.ACTIVE.value}' AND due_at > %(now)s
"""
logger = logging.getLogger(__name__)


def start_due(now: datetime) -> None:
    due = list(Workflow.objects.due(now).order_by("due_at", "pk")[:STARTED_PER_TICK])
    for workflow in due:
        try:
            workflow.start(now)
        except AWAY:
            raise
        except Exception:
            logger.exception("workflow %s could not be started; the next tick tries again", workflow)
    if len(due) == STARTED_PER_TICK:
        wake("jim_schedules")


def recover(now: datetime) -> None:
    """Wake workflows that were left without a due time, and end active runs whose task has ended.

    A task can end before its run if the task is cancelled in the queue, or if the database refuses a write.
    """
    Workflow.objects.awaken(set(Workflow.objects.forgotten().values_list("pk", flat=True)), now=now)
    for run in Run.objects.abandoned().select_related("workflow", "handler"):
        try:
            _recover(run, now)
        except AWAY:
            raise
        except Exception:
            logger.exception("run %s cannot be recovered", run.pk)


def _recover(run: Run, now: datetime) -> None:
    last = Activity.objects.filter(task_key=run.key).order_by("-attempt").first()
    is_cancelled = last is not None and last.status == Activity.Status.CANCELLED
    end_unperformed(run, "the run's task ended before the run", is_cancelled=is_cancelled, now=now)


def prune_runs(now: datetime) -> int:
    return Run.objects.prune(before=_before(now), limit=BATCH)


def prune_events(now: datetime) -> int:
    """Delete old events that were consumed or skipped; their message ids can then be used again.

    Events that have yet to start a schedule are kept.
    """
    unheard = EventTrigger.objects.filter(topic=OuterRef("topic"), cursor__lt=OuterRef("seq"))
    awaited = Occurrence.objects.pending().filter(source=Occurrence.Source.EVENT)
    ids = awaited.annotate(event=Cast("initiator_id", BigIntegerField())).values("event")
    old = Event.objects.filter(~Exists(unheard), settled_at__lt=_before(now)).exclude(pk__in=ids)
    return Event.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


def _before(now: datetime) -> datetime:
    return now - timedelta(days=settings.JIM_RETENTION_DAYS)
