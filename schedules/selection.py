"""Filters and sort orders for lists of schedules."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Lower

from .models import Schedule, ScheduleQuerySet, Tag

OPEN = ~Q(status="closed")
# Closed schedules are shown only on request.
STATES = {
    "": OPEN,
    "active": Q(status="active", spec_error="") & (Q(next_run_at__isnull=False) | ~Q(topics=[])),
    "paused": Q(status="paused"),
    "failing": OPEN & Q(failures_in_a_row__gt=0),
    "overdue": OPEN,
    "broken": OPEN & ~Q(spec_error=""),
    "idle": Q(status="active", spec_error="", next_run_at=None, topics=[]),
    "closed": Q(status="closed"),
    "all": Q(),
}
ORDERS = {
    "name": (Lower("name"), "pk"),
    "next": (F("next_run_at").asc(nulls_last=True), "pk"),
    "last": (F("last_run_at").desc(nulls_last=True), "pk"),
    "failures": ("-failures_in_a_row", Lower("name"), "pk"),
    "newest": ("-pk",),
}


def select(
    *, state: str = "", text: str = "", tag: str = "", order: str = "name", now: datetime
) -> ScheduleQuerySet:
    rows = Schedule.objects.filter(STATES[state])
    rows = rows.overdue(now) if state == "overdue" else rows
    rows = rows.tagged(tag) if tag else rows
    if text:
        tagged = Tag.objects.filter(schedule=OuterRef("pk"), name__icontains=text)
        rows = rows.filter(Q(name__icontains=text) | Q(description__icontains=text) | Exists(tagged))
    return rows.order_by(*ORDERS[order])


def troubled(now: datetime) -> ScheduleQuerySet:
    """Select schedules that need attention: broken, overdue, paused after failures, or failing."""
    is_overdue = Q(pk__in=Schedule.objects.overdue(now).values("pk"))
    is_failing = Q(failures_in_a_row__gt=0, status="active") | Q(is_paused_by_failures=True)
    return Schedule.objects.filter(OPEN & (~Q(spec_error="") | is_overdue | is_failing))


def tags_in_use(*, most: int) -> list[str]:
    used = Tag.objects.exclude(schedule__status=Schedule.Status.CLOSED).order_by("name")
    return list(used.values_list("name", flat=True).distinct()[:most])
