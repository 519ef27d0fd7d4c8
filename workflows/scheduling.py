"""What the scheduler does for workflows: what comes with time, and what a crash left behind.

Whoever publishes or commits starts what follows at once.
"""

from __future__ import annotations

import logging
from datetime import datetime

from activities.models import Activity
from database.statements import AWAY
from database.wake import wake

from .models import Run, Workflow
from .step import end_unperformed

STARTED_PER_TICK = 200
logger = logging.getLogger(__name__)


def start_due(now: datetime) -> None:
    due = list(Workflow.objects.due(now).order_by("due_at", "pk")[:STARTED_PER_TICK])
    for workflow in due:
        try:
            workflow.start(now)
        except AWAY:
            raise
        except Exception:
            logger.exception("workflow %s cannot go on; the next tick tries again", workflow)
    if len(due) == STARTED_PER_TICK:
        wake("jim_schedules")


def recover(now: datetime) -> None:
    """Workflows that nobody looks at, and runs whose task has ended without them: cancelled in the queue, or
    refused by the database."""
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
    end_unperformed(run, "its task ended without it", is_cancelled=is_cancelled, now=now)
