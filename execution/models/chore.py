from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, models
from django.db.models import Q

from database.statements import fetch, instant

SILENCE = timedelta(minutes=2)


class ChoreQuerySet(models.QuerySet["Chore"]):
    def take(self, name: str, *, every: timedelta, now: datetime) -> bool:
        """Take this chore if it is due; return whether the caller should do the chore now.

        In each interval `every`, only one call returns True, whichever process makes it.
        """
        self.get_or_create(name=name)
        due = Q(last_run_at=None) | Q(last_run_at__lte=now - every)
        return self.filter(due, name=name).update(last_run_at=now) == 1

    def tick(self, *, outage: timedelta, now: datetime) -> datetime:
        """Record a tick; return since when schedulers have ticked without a gap longer than `outage`.

        If the last tick is more than `outage` in the future, the clock was set back. This also counts as a
        gap.
        """
        times = (now, now - outage, now + outage)
        at, long_ago, ahead = (connection.ops.adapt_datetimefield_value(time) for time in times)
        is_known = "execution_chore.last_run_at BETWEEN %s AND %s"
        [(steady_since,)] = fetch(
            "INSERT INTO execution_chore (name, last_run_at, steady_since) VALUES ('tick', %s, %s) "
            "ON CONFLICT (name) DO UPDATE SET "
            f"last_run_at = CASE WHEN {is_known} "
            "THEN execution_chore.last_run_at ELSE excluded.last_run_at END, "
            f"steady_since = CASE WHEN {is_known} "
            "THEN execution_chore.steady_since ELSE excluded.steady_since END RETURNING steady_since",
            [at, at, at, ahead, long_ago, ahead],
        )
        return instant(steady_since)

    def note_tick_took(self, seconds: float) -> None:
        self.filter(name="tick").update(took_seconds=seconds)

    def last_tick(self) -> Chore | None:
        """Return the chore that records when a scheduler last ticked, and how long that took."""
        return self.filter(name="tick").first()


class Chore(models.Model):
    """Recurring work that one process does on behalf of all, with the time at which it was last done."""

    name = models.CharField(max_length=40, primary_key=True)
    last_run_at = models.DateTimeField(null=True)
    steady_since = models.DateTimeField(null=True)
    took_seconds = models.FloatField(null=True)

    objects = ChoreQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name


def is_ticking(last_tick: Chore | None, *, now: datetime) -> bool:
    """Return whether a scheduler is running, judged by its last tick.

    A scheduler ticks at least every half lease.
    """
    silence = max(SILENCE, timedelta(seconds=settings.JIM_LEASE_SECONDS))
    return (
        last_tick is not None and last_tick.last_run_at is not None and now - last_tick.last_run_at < silence
    )
