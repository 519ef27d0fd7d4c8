from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import BigIntegerField, Exists, OuterRef
from django.db.models.functions import Cast

from execution.loops.housekeeping import BATCH
from schedules.models import Occurrence

from .models import Event, EventTrigger, Run


def prune_runs(now: datetime) -> int:
    return Run.objects.prune(before=_before(now), limit=BATCH)


def prune_events(now: datetime) -> int:
    """Once its time is over, an event's message id may be used again.

    One that a schedule has yet to start with stays, whether it has become an occurrence or still waits for
    room.
    """
    unheard = EventTrigger.objects.filter(topic=OuterRef("topic"), cursor__lt=OuterRef("seq"))
    awaited = Occurrence.objects.pending().filter(source=Occurrence.Source.EVENT)
    ids = awaited.annotate(event=Cast("initiator_id", BigIntegerField())).values("event")
    old = Event.objects.filter(~Exists(unheard), settled_at__lt=_before(now)).exclude(pk__in=ids)
    return Event.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


def _before(now: datetime) -> datetime:
    return now - timedelta(days=settings.JIM_RETENTION_DAYS)
