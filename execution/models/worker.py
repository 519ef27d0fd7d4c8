from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q
from django.urls import reverse

from activities.signals import Event, noticed
from database import clock

# The SQL condition for what `holding_leases` and `holds_lease` check.
HOLDS_LEASE = "status = 'alive' AND lease_until >= %(now)s"


class WorkerQuerySet(models.QuerySet["Worker"]):
    def alive(self) -> WorkerQuerySet:
        return self.filter(status=Worker.Status.ALIVE)

    def holding_leases(self, now: datetime) -> WorkerQuerySet:
        """Keep the workers with a valid lease. A dead worker stays `alive` until a scheduler notices."""
        return self.alive().filter(lease_until__gte=now)

    def expired(self, now: datetime) -> WorkerQuerySet:
        """Keep living workers whose lease has ended, or ends so late that the clock must have gone back."""
        return self.alive().exclude(lease_until__range=(now, now + 2 * lease()))

    def seats_of(self, pool: str) -> int:
        """Return how many tasks of this pool the living workers can run at once, but at least 1."""
        return seats_of(pool, self.alive().values_list("pools", "seats"))

    def register(self, *, id: uuid.UUID, pools: Sequence[str], seats: int, now: datetime) -> Worker:
        return self.create(
            id=id,
            host=socket.gethostname(),
            pid=os.getpid(),
            pools=list(pools),
            seats=seats,
            started_at=now,
            beat_at=now,
            lease_until=now + lease(),
        )

    def bury(self, *, now: datetime) -> int:
        """Mark the living workers of this queryset as dead, and return their number.

        Their heartbeats and claims no longer count.
        """
        buried: list[Worker] = []
        for worker in self.alive().order_by("pk"):
            with transaction.atomic():
                if self.alive().filter(pk=worker.pk).update(status=Worker.Status.DEAD, ended_at=now):
                    noticed.send(Worker, events=[worker._lost(now)])
                    buried.append(worker)
        return len(buried)

    def prune(self, *, before: datetime, limit: int) -> int:
        """Delete up to `limit` workers that ended before this time and have no tasks; return their number."""
        from .task import WorkerTask

        held = WorkerTask.objects.filter(worker=OuterRef("pk"))
        old = self.exclude(status=Worker.Status.ALIVE).filter(~Exists(held), ended_at__lt=before)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]


class Worker(models.Model):
    """A worker process. Its lease covers all of its tasks."""

    class Status(models.TextChoices):
        ALIVE = "alive"
        DEAD = "dead"
        GONE = "gone"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    pools = models.JSONField(
        default=list, help_text="The pools that this worker serves. If empty, it serves all pools."
    )
    seats = models.PositiveIntegerField()
    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ALIVE)
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField()
    lease_until = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    clock_skew_seconds = models.FloatField(
        null=True,
        blank=True,
        help_text="By how many seconds the host's clock was ahead of the database's clock at the last "
        "heartbeat; negative if it was behind. Empty on SQLite, which has no clock of its own.",
    )
    stale_refused = models.PositiveIntegerField(
        default=0,
        help_text="How many outcomes were refused because the task no longer belonged to this worker.",
    )

    objects = WorkerQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["lease_until"], name="worker_alive", condition=Q(status="alive"))]

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    def get_absolute_url(self) -> str:
        return reverse("web:worker", args=[self.pk])

    def holds_lease(self, now: datetime) -> bool:
        return self.status == self.Status.ALIVE and self.lease_until >= now

    @property
    def lifetime(self) -> timedelta | None:
        return self.ended_at - self.started_at if self.ended_at else None

    def _lost(self, now: datetime) -> Event:
        told = {
            "id": str(self.pk),
            "host": self.host,
            "pid": self.pid,
            "last_beat_at": self.beat_at.isoformat(),
            "tasks": self.tasks.count(),
        }
        return Event("worker.lost", now, data={"worker": told})

    @property
    def clock_trouble(self) -> str:
        """Describe how the host's clock differs from the database's; empty if they agree."""
        seconds = self.clock_skew_seconds
        return "" if seconds is None else clock.trouble(timedelta(seconds=seconds))

    def beat(self, now: datetime, *, clock_skew: timedelta | None = None) -> bool:
        """Renew the lease; return False if this worker counts as dead.

        In that case, the process must end its children and register again.
        """
        alive = Worker.objects.alive().filter(pk=self.pk)
        skew = None if clock_skew is None else clock_skew.total_seconds()
        return alive.update(beat_at=now, lease_until=now + lease(), clock_skew_seconds=skew) == 1

    def stop(self, now: datetime) -> bool:
        return Worker.objects.alive().filter(pk=self.pk).update(status=self.Status.GONE, ended_at=now) == 1


def serves(pools: Sequence[str], pool: str) -> bool:
    """Return whether a worker with these `pools` serves `pool`; a worker without pools serves all pools."""
    return not pools or pool in pools


def serving(pool: str, workers: Iterable[tuple[Sequence[str], int]]) -> list[int]:
    """Return the seats of each worker that serves the pool; each worker is given as (pools, seats)."""
    return [seats for pools, seats in workers if serves(pools, pool)]


def seats_of(pool: str, workers: Iterable[tuple[Sequence[str], int]]) -> int:
    """Return how many tasks of this pool these workers can run at once, but at least 1."""
    return max(1, sum(serving(pool, workers)))


def lease() -> timedelta:
    return timedelta(seconds=settings.JIM_LEASE_SECONDS)
