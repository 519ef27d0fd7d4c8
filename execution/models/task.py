from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import F, Q
from django.urls import reverse

from activities.models import Activity
from database.wake import wake
from execution.queue.order import INDEXED, position_before_all
from operations.initiator import Initiator

from .brief import LineField
from .execution import Execution
from .task_queryset import WorkerTaskQuerySet
from .worker import Worker

MOST_PRIORITY = 1_000


class WorkerTask(models.Model):
    """The queue row of one step, for its whole life, retries included; deleted when its work is done."""

    class Status(models.TextChoices):
        WAITING = "waiting"
        QUEUED = "queued"
        PROCESSING = "processing"

    # Unique, as its activities see to it; found through them as well.
    key = models.UUIDField()
    execution = models.ForeignKey(
        Execution, models.CASCADE, null=True, blank=True, related_name="tasks", db_index=False
    )
    activity = models.ForeignKey(Activity, models.PROTECT, related_name="+")
    line = models.PositiveIntegerField()
    step_index = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    step = LineField(help_text="The line of the plan, frozen.")
    pool = models.CharField(max_length=40)
    isolation = models.CharField(max_length=8)
    priority = models.IntegerField(default=0)
    position = models.BigIntegerField(default=0)
    limit_keys = models.CharField(
        max_length=1_200, blank=True, help_text="What it counts for while it runs, one key per line."
    )
    is_limited = models.BooleanField(default=False, help_text="There is a limit for one of its keys.")
    dedup_key = models.CharField(
        max_length=200, blank=True, help_text="Of a job: no other with the same key is queued meanwhile."
    )
    status = models.CharField(max_length=10, choices=Status.choices)
    attempt = models.PositiveIntegerField(default=1)
    failures = models.PositiveIntegerField(default=0)
    crashes = models.PositiveIntegerField(default=0)
    available_at = models.DateTimeField()
    is_delayed = models.BooleanField(default=False, help_text="Not ready before `available_at`.")
    worker = models.ForeignKey(
        Worker,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="tasks",
        db_index=False,
        # A claim looks at its worker once; the database would do so again for each of its tasks.
        db_constraint=False,
    )
    claimed_at = models.DateTimeField(null=True, blank=True)
    begun_at = models.DateTimeField(null=True, blank=True, help_text="Of an attempt that put itself off.")
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    objects = WorkerTaskQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(
                F("isolation"),
                *INDEXED,
                name="task_queue",
                condition=Q(status="queued", is_delayed=False, is_limited=False),
            ),
            models.Index(
                F("pool"),
                F("isolation"),
                *INDEXED,
                name="task_queue_of_pool",
                condition=Q(status="queued", is_delayed=False, is_limited=False),
            ),
            models.Index(
                F("limit_keys"),
                F("isolation"),
                F("pool"),
                *INDEXED,
                name="task_queue_limited",
                condition=Q(status="queued", is_delayed=False, is_limited=True),
            ),
            models.Index(
                fields=["available_at"],
                name="task_delayed",
                condition=Q(status="queued", is_delayed=True),
            ),
            models.Index(
                fields=["execution"], name="task_of_execution", condition=Q(execution__isnull=False)
            ),
            models.Index(fields=["worker"], name="task_of_worker", condition=Q(status="processing")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["dedup_key"], name="task_dedup", condition=~Q(dedup_key="")),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        """Its attempt's: that stays when the task is done."""
        return reverse("web:activity", args=[self.activity_id])

    @property
    def state(self) -> str:
        """The status as people see it."""
        return "cancelling" if self.cancel_requested_at else self.status

    def prioritise(self, priority: int, *, initiator: Initiator, now: datetime) -> bool:
        """Change the priority. False: it has been claimed meanwhile, and nothing changes for what runs."""
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MOST_PRIORITY:
            raise ValidationError(
                {"priority": f"A whole number from -{MOST_PRIORITY} to {MOST_PRIORITY} is expected."}
            )
        return self._change({"priority": priority}, f"Its priority is {priority}.", initiator, now)

    def move_to_front(self, *, initiator: Initiator, now: datetime) -> bool:
        return self._change({"position": position_before_all(now)}, "It goes first.", initiator, now)

    def move_to_back(self, *, initiator: Initiator, now: datetime) -> bool:
        return self._change({"position": -position_before_all(now)}, "It goes last.", initiator, now)

    def hasten(self, *, initiator: Initiator, now: datetime) -> bool:
        """Let a retry or a job start before its time. False: it does not wait for one."""
        return self._change(
            {"is_delayed": False, "available_at": now},
            "It waits no longer.",
            initiator,
            now,
            status=self.Status.QUEUED,
            is_delayed=True,
            begun_at=None,
        )

    def _change(
        self, values: dict[str, Any], message: str, initiator: Initiator, now: datetime, **guard: Any
    ) -> bool:
        with transaction.atomic():
            if not WorkerTask.objects.unclaimed().filter(pk=self.pk, **guard).update(**values):
                return False
            Activity.objects.record("reorder", self, initiator=initiator, now=now, message=message)
            wake("jim_tasks")
        return True
