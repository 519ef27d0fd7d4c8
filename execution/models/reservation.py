from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from activities.models import Activity


class Reservation(models.Model):
    """The next free seat of a pool, held for a direct request. It counts as occupied until it is released."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    pool = models.CharField(max_length=40)
    limit_keys = models.CharField(max_length=1_200, blank=True)
    holder = models.CharField(max_length=255, help_text="The host and the process that beat for it.")
    activity = models.ForeignKey(Activity, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField()
    taken_at = models.DateTimeField(null=True, help_text="Since when its request runs.")
    lease_until = models.DateTimeField()
    released_at = models.DateTimeField(null=True)
    passes_first = models.BigIntegerField(
        null=True, help_text="The task that goes before the next reservation of this pool."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool"], name="reservation_once", condition=Q(released_at__isnull=True)
            ),
        ]
        indexes = [models.Index(fields=["pool", "-released_at"], name="reservation_of_pool")]

    def __str__(self) -> str:
        return f"{self.pool} for {self.holder}"
