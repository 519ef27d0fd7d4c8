from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q


class ChoreQuerySet(models.QuerySet["Chore"]):
    def take(self, name: str, *, every: timedelta, now: datetime) -> bool:
        """Whether it is this caller's turn: once per interval across all processes."""
        self.get_or_create(name=name)
        due = Q(last_run_at=None) | Q(last_run_at__lte=now - every)
        return self.filter(due, name=name).update(last_run_at=now) == 1

    def tick(self, *, outage: timedelta, now: datetime) -> datetime:
        """Notes that a scheduler ticks; since when has one ticked without a gap longer than `outage`?"""
        chore, _ = self.get_or_create(name="tick", defaults={"last_run_at": now, "steady_since": now})
        if chore.last_run_at is None or now - chore.last_run_at > outage:
            self.filter(name="tick", last_run_at=chore.last_run_at).update(steady_since=now)
        self.filter(Q(last_run_at=None) | Q(last_run_at__lt=now), name="tick").update(last_run_at=now)
        return self.values_list("steady_since", flat=True).get(name="tick") or now


class Chore(models.Model):
    """When something that is done once for all processes was last done."""

    name = models.CharField(max_length=40, primary_key=True)
    last_run_at = models.DateTimeField(null=True)
    steady_since = models.DateTimeField(null=True)

    objects = ChoreQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
