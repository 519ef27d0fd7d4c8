"""What can be asked, and done, of many runs at once."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models

from activities.models import Activity
from execution.models.planned import Planned, add, new_key
from operations.initiator import Initiator
from workflows.failures import Phase, Status

from .handler import Handler

if TYPE_CHECKING:
    from .run import Run

SYSTEM = Initiator.system("workflows")


class RunQuerySet(models.QuerySet["Run"]):
    def active(self) -> RunQuerySet:
        """By the index of the open ones: a workflow may have millions that are settled."""
        return self.open().filter(status=Status.ACTIVE)

    def open(self) -> RunQuerySet:
        """Active, or stuck: each workflow has at most one of these."""
        return self.filter(settled_at=None)

    def stuck(self) -> RunQuerySet:
        return self.open().exclude(status=Status.ACTIVE)

    def waiting(self) -> RunQuerySet:
        """Stuck until somebody acts."""
        return self.stuck().filter(due_at=None)

    def begin(self, handler: Handler, *, now: datetime) -> Run:
        """A first attempt. The caller holds the workflow's lock."""
        return self.add(self.model(handler=handler, phase=Phase.PREPARING), now=now)

    def add(self, run: Run, *, now: datetime) -> Run:
        """With its task."""
        handler = run.handler
        run.key, run.workflow = new_key(), handler.workflow
        run.code_version, run.created_at, run.updated_at = handler.code_version, now, now
        run.save(force_insert=True)
        add([Planned(run._line(), SYSTEM)], now=now)
        return run

    def abandoned(self) -> RunQuerySet:
        """Active, though the task that ran them has ended, and nobody has asked for another attempt of it."""
        attempts = Activity.objects.filter(task_key=models.OuterRef("key"))
        is_open = models.Exists(attempts.filter(status__in=Activity.OPEN))
        return self.active().filter(models.Exists(attempts), ~is_open)

    def prune(self, *, before: datetime, limit: int) -> int:
        old = self.filter(settled_at__lt=before, retries=None, reserved__status__isnull=True)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]
