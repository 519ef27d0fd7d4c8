from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from activities.models import Initiator
from activities.statements import update_each

if TYPE_CHECKING:
    from .schedule import Schedule


class Overlap(models.TextChoices):
    SKIP = "skip", "Skip: never two executions side by side"
    ALLOW_ALL = "allow_all", "Allow all: start even while others run"


class OccurrenceQuerySet(models.QuerySet["Occurrence"]):
    def pending(self) -> OccurrenceQuerySet:
        return self.filter(status=Occurrence.Status.PENDING)

    def automatic(self) -> OccurrenceQuerySet:
        return self.filter(source=Occurrence.Source.AUTO)

    def due(self, now: datetime) -> OccurrenceQuerySet:
        """What the invoker may settle now: automatic ones of a paused schedule are never due."""
        return self.pending().filter(due_at__lte=now)

    def settle(self, status: str, *, reason: str, now: datetime) -> int:
        return self.filter(status=Occurrence.Status.PENDING).update(
            status=status, reason=reason, settled_at=now
        )

    def settle_each(
        self,
        fates: Sequence[tuple[int, str, str, int | None, datetime]],
        *,
        known: Mapping[int, Occurrence],
    ) -> None:
        """Each its own: (id, status, reason, blocked_by, settled_at); the known ones are told, too."""
        settled = update_each(
            Occurrence, ("status", "reason", "blocked_by", "settled_at"), fates, where="t.status = 'pending'"
        )
        for pk, status, reason, blocked_by, settled_at in fates:
            if pk in settled:
                occurrence = known[pk]
                occurrence.status, occurrence.reason = status, reason
                occurrence.blocked_by, occurrence.settled_at = blocked_by, settled_at

    def prune(self, *, before: datetime, limit: int) -> int:
        """Settled ones whose execution, if there was one, is gone already."""
        old = self.filter(settled_at__lt=before, execution=None).exclude(status=Occurrence.Status.PENDING)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]


class Occurrence(models.Model):
    """One nominal time, or one request, and its fate."""

    class Status(models.TextChoices):
        PENDING = "pending"
        STARTED = "started"
        SKIPPED = "skipped"
        MISSED = "missed"
        DROPPED = "dropped"
        CANCELLED = "cancelled"

    class Source(models.TextChoices):
        AUTO = "auto"
        MANUAL = "manual"
        BACKFILL = "backfill"
        EVENT = "event"

    schedule = models.ForeignKey(
        "schedules.Schedule", models.CASCADE, related_name="occurrences", db_index=False
    )
    source = models.CharField(max_length=8, choices=Source.choices)
    key = models.CharField(max_length=200)
    nominal_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True, help_text="Empty while it waits for its paused schedule.")
    overlap = models.CharField(max_length=16, choices=Overlap.choices, blank=True)
    status = models.CharField(max_length=9, choices=Status.choices, default=Status.PENDING)
    reason = models.CharField(max_length=200, blank=True)
    blocked_by = models.BigIntegerField(null=True, blank=True, help_text="The execution that was in the way.")
    initiator_type = models.CharField(max_length=16)
    initiator_id = models.CharField(max_length=64, blank=True)
    initiator_name = models.CharField(max_length=255)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    objects = OccurrenceQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "key"], name="occurrence_once")]
        indexes = [
            models.Index(fields=["due_at"], name="occurrence_due", condition=Q(status="pending")),
            models.Index(
                fields=["schedule", "due_at"], name="occurrence_pending", condition=Q(status="pending")
            ),
            models.Index(fields=["schedule", "-nominal_at"], name="occurrence_of_schedule"),
            models.Index(
                fields=["settled_at"], name="occurrence_settled", condition=Q(settled_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key} ({self.get_status_display()})"

    @classmethod
    def automatic(cls, schedule: Schedule, at: datetime, *, now: datetime) -> Occurrence:
        key = f"auto/{at:%Y-%m-%dT%H:%M:%SZ}"
        by = Initiator.schedule(schedule)
        occurrence = cls._new(schedule, cls.Source.AUTO, key, at, initiator=by, now=now)
        if schedule.is_paused:
            occurrence.due_at = None
        return occurrence

    @classmethod
    def manual(
        cls, schedule: Schedule, *, initiator: Initiator, now: datetime, key: str = "", overlap: str = ""
    ) -> Occurrence:
        occurrence = cls._new(
            schedule, cls.Source.MANUAL, f"manual/{key or uuid.uuid4()}", now, initiator=initiator, now=now
        )
        occurrence.overlap = overlap
        return occurrence

    @classmethod
    def _new(
        cls, schedule: Schedule, source: str, key: str, at: datetime, *, initiator: Initiator, now: datetime
    ) -> Occurrence:
        return cls(
            schedule=schedule,
            source=source,
            key=key,
            nominal_at=at,
            due_at=at,
            initiator_type=initiator.type,
            initiator_id=initiator.id,
            initiator_name=initiator.name,
            created_at=now,
        )

    @property
    def initiator(self) -> Initiator:
        return Initiator(self.initiator_type, self.initiator_id, self.initiator_name)

    @property
    def lag(self) -> timedelta | None:
        return self.settled_at - self.nominal_at if self.settled_at else None
