"""Queries and statements on many runs."""

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
        """Keep the active runs.

        The query uses the index of open runs, because there may be millions of other runs.
        """
        return self.open().filter(status=Status.ACTIVE)

    def open(self) -> RunQuerySet:
        """Keep the runs that are active or stuck; each workflow has at most one."""
        return self.filter(settled_at=None)

    def stuck(self) -> RunQuerySet:
        return self.open().exclude(status=Status.ACTIVE)

    def waiting(self) -> RunQuerySet:
        """Keep the stuck runs whose next attempt does not begin by itself, so that a person is needed."""
        return self.stuck().filter(due_at=None)

    def begin(self, handler: Handler, *, now: datetime) -> Run:
        """Add and return a run of the handler that is not a retry. The caller holds the workflow's lock."""
        return self.add(self.model(handler=handler, phase=Phase.PREPARING), now=now)

    def add(self, run: Run, *, now: datetime) -> Run:
        """Store the run, queue its task and return the run."""
        handler = run.handler
        run.key, run.workflow = new_key(), handler.workflow
        run.code_version, run.created_at, run.updated_at = handler.code_version, now, now
        run.save(force_insert=True)
        add([Planned(run._line(), SYSTEM)], now=now)
        return run

    def abandoned(self) -> RunQuerySet:
        """Keep the active runs whose task has ended and has no further attempt."""
        attempts = Activity.objects.filter(task_key=models.OuterRef("key"))
        is_open = models.Exists(attempts.filter(status__in=Activity.OPEN))
        return self.active().filter(models.Exists(attempts), ~is_open)

    def prune(self, *, before: datetime, limit: int) -> int:
        old = self.filter(settled_at__lt=before, retries=None, reserved__status__isnull=True)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]
