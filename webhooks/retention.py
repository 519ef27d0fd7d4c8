"""Deletion of old deliveries and removed endpoints."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings

from execution.loops.housekeeping import BATCH

from .models import Delivery, Endpoint


def prune_deliveries(now: datetime) -> int:
    """Delete a batch of old deliveries, and return how many rows were deleted.

    If no old deliveries are left, delete removed endpoints without deliveries instead.
    """
    before = now - timedelta(days=settings.JIM_RETENTION_DAYS)
    return Delivery.objects.prune(before=before, limit=BATCH) or Endpoint.objects.prune(limit=BATCH)
