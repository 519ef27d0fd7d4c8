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
from workflows.decision import Decision, Facts, Open, decide

if TYPE_CHECKING:
    from .handler import Handler
    from .run import Run

logger = logging.getLogger(__name__)


class WorkflowQuerySet(models.QuerySet["Workflow"]):
    def running(self) -> WorkflowQuerySet:
        return self.filter(status=Workflow.Status.RUNNING)

    def shown_as(self, status: str) -> WorkflowQuerySet:
        """Those that people see so: running, idle, needs_attention or stopped."""
        from .run import Run

        if status == "stopped":
            return self.exclude(status=Workflow.Status.RUNNING)
        is_open = Exists(Run.objects.open().filter(workflow=OuterRef("pk")))
        is_waiting = Exists(Run.objects.waiting().filter(workflow=OuterRef("pk")))
        shown = {"idle": ~is_open, "needs_attention": is_waiting, "running": is_open & ~is_waiting}
        return self.running().filter(shown[status])

    def in_order_of_need(self) -> WorkflowQuerySet:
        """Put those that need attention first, then sort by title."""
        urgent = Workflow.objects.shown_as("needs_attention").filter(pk=OuterRef("pk"))
        return self.order_by(Exists(urgent).desc(), "title", "pk")

    def due(self, now: datetime) -> WorkflowQuerySet:
        """Those for which a look may bring something: what is active looks itself when it ends."""
        from .run import Run

        active = Run.objects.active().filter(workflow=OuterRef("pk"))
        return self.running().filter(~Exists(active), due_at__lte=now)

    def forgotten(self) -> WorkflowQuerySet:
        """Those at which nobody would look though events wait: whoever was about to say so is gone."""
        from .handler import Subscription
        from .run import Run

        is_open = Exists(Run.objects.open().filter(workflow=OuterRef("pk")))
        is_behind = Exists(Subscription.objects.behind().filter(handler__workflow=OuterRef("pk")))
        return self.running().filter(~is_open, is_behind, due_at=None)

    def lock(self) -> WorkflowQuerySet:
        """By id, as everybody does, so that nobody waits in a circle."""
        return self.select_for_update(of=("self",), no_key=True).order_by("pk")

    def awaken(self, ids: Collection[int], *, now: datetime) -> None:
        """Part of every change that may let a run start; somebody looks as soon as it is committed.

        The write has no condition: one that found `due_at` set already would not wait for a look that is
        under way, which clears it without having seen the change.
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
    """So that nothing waits for a tick; a tick repeats what is lost here."""
    from database import clock

    for pk in ids:
        try:
            Workflow(pk=pk).start(clock.now())
        except AWAY as error:
            logger.warning("workflow %s cannot be looked at now, the scheduler will: %s", pk, error)


class Workflow(models.Model):
    """Handlers of which at most one runs at any time, as they were last deployed from code."""

    class Status(models.TextChoices):
        RUNNING = "running"
        PAUSED = "paused"
        STOPPED = "stopped", "Stopped: the code no longer has it"

    slug = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=200)
    description = models.TextField(blank=True)
    pool = models.CharField(max_length=40, default="default")
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.RUNNING)
    note = models.CharField(max_length=1000, blank=True, help_text="Why it is paused.")
    returns_as = models.CharField(
        max_length=8,
        choices=Status.choices,
        default=Status.RUNNING,
        help_text="Its status when the code has it again: what somebody paused stays so.",
    )
    due_at = models.DateTimeField(null=True, blank=True, help_text="When to look whether a run can start.")
    created_at = models.DateTimeField()
    deployed_at = models.DateTimeField()

    objects = WorkflowQuerySet.as_manager()

    class Meta:
        ordering = ["title"]
        permissions = [("operate_workflow", "Can run, pause and resolve workflows")]
        default_permissions = ("view",)
        indexes = [models.Index(fields=["due_at"], name="workflow_due", condition=Q(status="running"))]

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("web:workflow", args=[self.slug])

    @property
    def is_running(self) -> bool:
        return self.status == self.Status.RUNNING

    @cached_property
    def can_run_now(self) -> bool:
        """Whether `run_now` was accepted when this was first asked; pages that know it already say so."""
        from .run import Run

        is_open = Exists(Run.objects.open().filter(workflow=OuterRef("workflow")))
        return self.is_running and self.handlers.deployed().producers().filter(~is_open).exists()

    def start(self, now: datetime) -> Run | None:
        """The next run, if it is time for one; else notes when to look again. No other place begins runs."""
        from .run import Run

        with transaction.atomic():
            locked = Workflow.objects.lock().get(pk=self.pk)
            open_run = Run.objects.open().filter(workflow=locked).select_related("handler").first()
            if open_run is not None and locked.is_running and open_run.is_without_code:
                open_run.leave(now=now)
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
        # Its state may be large, and only the run itself needs it.
        return Run.objects.begin(self.handlers.defer("state", "spec").get(pk=decision.handler), now=now)

    def _facts(self, open_run: Run | None) -> Facts:
        if open_run is not None or not self.is_running:
            known = Open(open_run.is_active, open_run.due_at) if open_run else None
            return Facts(self.is_running, known)
        return Facts(True, None, *self.handlers.facts(self.pk))

    def run_now(self, *, initiator: Initiator, now: datetime) -> list[Handler]:
        """Makes all producers due, in their order; Refused while something is active or stuck."""
        from .run import Run

        with transaction.atomic():
            locked = Workflow.objects.lock().get(pk=self.pk)
            locked._check_idle(Run.objects.open().filter(workflow=locked).first())
            producers = list(locked.handlers.deployed().producers())
            if not producers:
                raise Refused(f"“{locked}” has no producers: its consumers run when an event comes.")
            locked.handlers.deployed().producers().update(next_run_at=now)
            Activity.objects.record("run_now", locked, initiator=initiator, now=now)
            Workflow.objects.awaken([locked.pk], now=now)
        return producers

    def _check_idle(self, open_run: Run | None) -> None:
        if self.status != self.Status.RUNNING:
            raise Refused(f"“{self}” is {self.status}: resume it first.")
        if open_run is not None and open_run.is_active:
            raise Refused(f"“{self}” is running: wait until {open_run.handler.name} has ended.")
        if open_run is not None:
            raise Refused(f"“{self}” waits for run {open_run.pk} to be resolved: {open_run.error}")

    def pause(self, note: str, *, initiator: Initiator, now: datetime) -> bool:
        """No more runs start; what is active goes on. False: it was not running."""
        return self._move(self.Status.RUNNING, self.Status.PAUSED, note, initiator=initiator, now=now)

    def resume(self, *, initiator: Initiator, now: datetime) -> bool:
        """What has come meanwhile is seen to. False: it was not paused."""
        return self._move(self.Status.PAUSED, self.Status.RUNNING, "", initiator=initiator, now=now)

    def stop(self, *, initiator: Initiator, now: datetime) -> bool:
        """The code no longer has it. What is active may end; False: it was stopped before."""
        why = "The code no longer has it."
        with transaction.atomic():
            others = Workflow.objects.filter(pk=self.pk).exclude(status=self.Status.STOPPED)
            stopped = others.update(status=self.Status.STOPPED, returns_as=F("status"), due_at=None)
            if stopped:
                Activity.objects.record("stop", self, initiator=initiator, now=now, message=why)
        return bool(stopped)

    def return_to_code(self) -> bool:
        """The code has it again. False: it had it all the time."""
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
