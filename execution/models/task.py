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
    """The row of one step or job in the queue. Retries use the same row; it is deleted when the task ends."""

    class Status(models.TextChoices):
        WAITING = "waiting"
        QUEUED = "queued"
        PROCESSING = "processing"

    # The key is unique, which the activities ensure. Tasks with a given key are found through their
    # activities.
    key = models.UUIDField()
    execution = models.ForeignKey(
        Execution, models.CASCADE, null=True, blank=True, related_name="tasks", db_index=False
    )
    activity = models.ForeignKey(Activity, models.PROTECT, related_name="+")
    line = models.PositiveIntegerField()
    step_index = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    step = LineField(help_text="The step as it was when the execution started or the job was queued.")
    pool = models.CharField(max_length=40)
    isolation = models.CharField(max_length=8)
    priority = models.IntegerField(default=0)
    position = models.BigIntegerField(default=0)
    limit_keys = models.CharField(
        max_length=1_200,
        blank=True,
        help_text="The keys of the limits that the task counts towards while it runs, one key per line.",
    )
    is_limited = models.BooleanField(
        default=False, help_text="Whether a limit exists for at least one of the limit keys of the task."
    )
    dedup_key = models.CharField(
        max_length=200,
        blank=True,
        help_text="While this job is in the queue, no other job with the same key is queued.",
    )
    status = models.CharField(max_length=10, choices=Status.choices)
    attempt = models.PositiveIntegerField(default=1)
    failures = models.PositiveIntegerField(default=0)
    crashes = models.PositiveIntegerField(default=0)
    available_at = models.DateTimeField()
    is_delayed = models.BooleanField(
        default=False, help_text="If true, the task does not start before `available_at`."
    )
    worker = models.ForeignKey(
        Worker,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="tasks",
        db_index=False,
        # A claim checks its worker once; a constraint would check it again for each task.
        db_constraint=False,
    )
    claimed_at = models.DateTimeField(null=True, blank=True)
    begun_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When the step began, if it has postponed itself since then.",
    )
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
        """Return the URL of the activity of this attempt, which still exists after the task has ended."""
        return reverse("web:activity", args=[self.activity_id])

    @property
    def state(self) -> str:
        """Return the status, or “cancelling” once a cancellation was requested."""
        return "cancelling" if self.cancel_requested_at else self.status

    def prioritise(self, priority: int, *, initiator: Initiator, now: datetime) -> bool:
        """Change the priority; return False if the task has been claimed in the meantime."""
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MOST_PRIORITY:
            raise ValidationError(
                {"priority": f"Must be a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}."}
            )
        return self._change({"priority": priority}, f"Priority set to {priority}.", initiator, now)

    def move_to_front(self, *, initiator: Initiator, now: datetime) -> bool:
        told = "Moved ahead of all other tasks with the same pool and priority."
        return self._change({"position": position_before_all(now)}, told, initiator, now)

    def move_to_back(self, *, initiator: Initiator, now: datetime) -> bool:
        told = "Moved behind all other tasks with the same pool and priority."
        return self._change({"position": -position_before_all(now)}, told, initiator, now)

    def hasten(self, *, initiator: Initiator, now: datetime) -> bool:
        """Let a delayed job or retry start now; return False if it is not delayed or has postponed itself."""
        return self._change(
            {"is_delayed": False, "available_at": now},
            "The delay was removed, so the task can start now.",
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
