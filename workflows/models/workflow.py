from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import models, transaction
from django.db.models import Exists, F, OuterRef, Q
from django.urls import reverse
from django.utils.functional import cached_property

from activities.models import Activity
from database.statements import AWAY
from database.wake import wake
from operations.initiator import Initiator
from schedules.models import Refused
from workflows.decision import Decision, Facts, OpenRun, decide

if TYPE_CHECKING:
    from .handler import Handler
    from .run import Run

logger = logging.getLogger(__name__)


class WorkflowQuerySet(models.QuerySet["Workflow"]):
    def active(self) -> WorkflowQuerySet:
        return self.filter(status=Workflow.Status.ACTIVE)

    def shown_as(self, status: str) -> WorkflowQuerySet:
        """Keep the workflows that are shown with this status: see `words.shown_status`."""
        from .run import Run

        if status in (Workflow.Status.PAUSED, Workflow.Status.STOPPED):
            return self.filter(status=status)
        is_open = Exists(Run.objects.open().filter(workflow=OuterRef("pk")))
        is_waiting = Exists(Run.objects.waiting().filter(workflow=OuterRef("pk")))
        shown = {"idle": ~is_open, "needs_attention": is_waiting, "running": is_open & ~is_waiting}
        return self.active().filter(shown[status])

    def in_order_of_need(self) -> WorkflowQuerySet:
        """Put workflows that need attention first, then sort by title."""
        urgent = Workflow.objects.shown_as("needs_attention").filter(pk=OuterRef("pk"))
        return self.order_by(Exists(urgent).desc(), "title", "pk")

    def due(self, now: datetime) -> WorkflowQuerySet:
        """Keep the due workflows without an active run. An active run starts the next one when it ends."""
        from .run import Run

        active_runs = Run.objects.active().filter(workflow=OuterRef("pk"))
        return self.active().filter(~Exists(active_runs), due_at__lte=now)

    def forgotten(self) -> WorkflowQuerySet:
        """Keep the idle workflows that have unseen events but no due time, for example after a crash."""
        from .handler import Subscription
        from .run import Run

        is_open = Exists(Run.objects.open().filter(workflow=OuterRef("pk")))
        is_behind = Exists(Subscription.objects.behind().filter(handler__workflow=OuterRef("pk")))
        return self.active().filter(~is_open, is_behind, due_at=None)

    def lock(self) -> WorkflowQuerySet:
        """Lock in id order to avoid deadlocks."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def awaken(self, ids: Collection[int], *, now: datetime) -> None:
        """Make workflows due after a change that may let a run start; after the commit, try to start the run.

        `due_at` is written in any case, because a concurrent `start` clears `due_at` without having seen the
        change.
        """
        if not ids:
            return
        with transaction.atomic(savepoint=False):
            if len(ids) > 1:
                list(self.filter(pk__in=ids).lock().values_list("pk"))
            self.filter(pk__in=ids).update(due_at=now)
            wake("jim_schedules")
            transaction.on_commit(lambda: start_soon(ids), robust=True)


def start_soon(ids: Collection[int]) -> None:
    """Start the workflows' next runs immediately; the scheduler's next tick repeats whatever fails here."""
    from database import clock

    for pk in ids:
        try:
            Workflow(pk=pk).start(clock.now())
        except AWAY as error:
            logger.warning("could not start workflow %s now; the scheduler will: %s", pk, error)


class Workflow(models.Model):
    """A workflow as last deployed from the code. At most one of its handlers runs at any time."""

    class Status(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        STOPPED = "stopped", "Stopped: removed from the code"

    slug = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=200)
    description = models.TextField(blank=True)
    pool = models.CharField(max_length=40, default="default")
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ACTIVE)
    note = models.CharField(max_length=1000, blank=True, help_text="Why the workflow is paused.")
    returns_as = models.CharField(
        max_length=8,
        choices=Status.choices,
        default=Status.ACTIVE,
        help_text="The status that the workflow gets when it is added to the code again.",
    )
    due_at = models.DateTimeField(null=True, blank=True, help_text="When to check whether a run can start.")
    created_at = models.DateTimeField()
    deployed_at = models.DateTimeField()

    objects = WorkflowQuerySet.as_manager()

    class Meta:
        ordering = ["title"]
        permissions = [("operate_workflow", "Can run, pause and resolve workflows")]
        default_permissions = ("view",)
        indexes = [models.Index(fields=["due_at"], name="workflow_due", condition=Q(status="active"))]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("web:workflow", args=[self.slug])

    @property
    def is_active(self) -> bool:
        return self.status == self.Status.ACTIVE

    @cached_property
    def can_run_now(self) -> bool:
        """Return whether `run_now` would be accepted. Pages that know the answer set this attribute."""
        from .run import Run

        is_open = Exists(Run.objects.open().filter(workflow=OuterRef("workflow")))
        return self.is_active and self.handlers.deployed().producers().filter(~is_open).exists()

    def start(self, now: datetime) -> Run | None:
        """Start and return the next run if one is due; otherwise, store when to check again and return None.

        Only this method begins runs.
        """
        from .run import Run

        with transaction.atomic():
            locked = Workflow.objects.lock().get(pk=self.pk)
            open_run = Run.objects.open().filter(workflow=locked).select_related("handler").first()
            if open_run is not None and locked.is_active and open_run.is_without_code:
                open_run.settle_without_code(now=now)
                open_run = None
            decision = decide(locked._facts(open_run), now)
            run = locked._begin(decision, open_run, now)
            if locked.due_at != decision.due_at:
                Workflow.objects.filter(pk=locked.pk).update(due_at=decision.due_at)
        return run

    def _begin(self, decision: Decision, open_run: Run | None, now: datetime) -> Run | None:
        from .run import Run

        if decision.follow:
            assert open_run is not None
            return open_run.follow(now=now)
        if decision.handler is None:
            return None
        # The state may be large, and is not needed here.
        return Run.objects.begin(self.handlers.defer("state", "spec").get(pk=decision.handler), now=now)

    def _facts(self, open_run: Run | None) -> Facts:
        if open_run is not None or not self.is_active:
            known = OpenRun(open_run.is_active, open_run.due_at) if open_run else None
            return Facts(self.is_active, known)
        return Facts(True, None, *self.handlers.facts(self.pk))

    def run_now(self, *, initiator: Initiator, now: datetime) -> list[Handler]:
        """Make all producers due and return them, in order; raise Refused if the workflow cannot run now."""
        from .run import Run

        with transaction.atomic():
            locked = Workflow.objects.lock().get(pk=self.pk)
            locked._check_idle(Run.objects.open().filter(workflow=locked).first())
            producers = list(locked.handlers.deployed().producers())
            if not producers:
                raise Refused(f"“{locked}” has no producers. Publish an event to run its consumers.")
            locked.handlers.deployed().producers().update(next_run_at=now)
            Activity.objects.record("run_now", locked, initiator=initiator, now=now)
            Workflow.objects.awaken([locked.pk], now=now)
        return producers

    def _check_idle(self, open_run: Run | None) -> None:
        if self.status != self.Status.ACTIVE:
            way_out = "Resume it" if self.status == self.Status.PAUSED else "Deploy its code again"
            raise Refused(f"“{self}” is {self.status}. {way_out} first.")
        if open_run is not None and open_run.is_active:
            raise Refused(f"“{self}” is running. Wait until its handler {open_run.handler.name} has ended.")
        if open_run is not None:
            raise Refused(f"“{self}” cannot run until run {open_run.pk} is resolved: {open_run.error}")

    def pause(self, note: str, *, initiator: Initiator, now: datetime) -> bool:
        """Start no more runs, but let an active run continue. Return False if the workflow was not active."""
        return self._move(self.Status.ACTIVE, self.Status.PAUSED, note, initiator=initiator, now=now)

    def resume(self, *, initiator: Initiator, now: datetime) -> bool:
        """Resume the workflow, so that runs start again; return False if it was not paused."""
        return self._move(self.Status.PAUSED, self.Status.ACTIVE, "", initiator=initiator, now=now)

    def stop(self, *, initiator: Initiator, now: datetime) -> bool:
        """Stop a workflow that was removed from the code; an active run continues.

        Return False if it was already stopped.
        """
        why = "The workflow was removed from the code."
        with transaction.atomic():
            others = Workflow.objects.filter(pk=self.pk).exclude(status=self.Status.STOPPED)
            stopped = others.update(status=self.Status.STOPPED, returns_as=F("status"), due_at=None)
            if stopped:
                Activity.objects.record("stop", self, initiator=initiator, now=now, message=why)
        return bool(stopped)

    def return_to_code(self) -> bool:
        """Restore the status of a workflow that is in the code again; return False if it was not stopped."""
        stopped = Workflow.objects.filter(pk=self.pk, status=self.Status.STOPPED)
        return bool(stopped.update(status=F("returns_as")))

    def _move(
        self,
        before: Workflow.Status,
        after: Workflow.Status,
        note: str,
        *,
        initiator: Initiator,
        now: datetime,
    ) -> bool:
        operation = "pause" if after == self.Status.PAUSED else "resume"
        with transaction.atomic():
            note = note.strip()[:1000]
            moved = Workflow.objects.filter(pk=self.pk, status=before).update(status=after, note=note)
            if moved:
                Activity.objects.record(operation, self, initiator=initiator, now=now, message=note)
                Workflow.objects.awaken([self.pk], now=now)
        return bool(moved)
