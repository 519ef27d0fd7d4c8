from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from execution.loops.housekeeping import BATCH

from .models import Delivery, Endpoint


def prune_deliveries(now: datetime) -> int:
    """What has ended long ago, and endpoints that were removed when none of theirs is left."""
    before = now - timedelta(days=settings.JIM_RETENTION_DAYS)
    return Delivery.objects.prune(before=before, limit=BATCH) or Endpoint.objects.prune(limit=BATCH)
