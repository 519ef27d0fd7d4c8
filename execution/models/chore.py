from __future__ import annotations

from datetime import datetime, timedelta

from django.db import connection, models
from django.db.models import Q

from activities.statements import fetch, instant


class ChoreQuerySet(models.QuerySet["Chore"]):
    def take(self, name: str, *, every: timedelta, now: datetime) -> bool:
        """Whether it is this caller's turn: once per interval across all processes."""
        self.get_or_create(name=name)
        due = Q(last_run_at=None) | Q(last_run_at__lte=now - every)
        return self.filter(due, name=name).update(last_run_at=now) == 1

    def tick(self, *, outage: timedelta, now: datetime) -> datetime:
        """Notes that a scheduler ticks; since when has one ticked without a gap longer than `outage`?"""
        at, long_ago = (connection.ops.adapt_datetimefield_value(time) for time in (now, now - outage))
        [(steady_since,)] = fetch(
            "INSERT INTO execution_chore (name, last_run_at, steady_since) VALUES ('tick', %s, %s) "
            "ON CONFLICT (name) DO UPDATE SET "
            "last_run_at = CASE WHEN execution_chore.last_run_at > excluded.last_run_at "
            "THEN execution_chore.last_run_at ELSE excluded.last_run_at END, "
            "steady_since = CASE WHEN execution_chore.last_run_at >= %s "
            "THEN execution_chore.steady_since ELSE excluded.steady_since END RETURNING steady_since",
            [at, at, long_ago],
        )
        return instant(steady_since)


class Chore(models.Model):
    """When something that is done once for all processes was last done."""

    name = models.CharField(max_length=40, primary_key=True)
    last_run_at = models.DateTimeField(null=True)
    steady_since = models.DateTimeField(null=True)

    objects = ChoreQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
