"""Pages of one schedule: the ledger of its occurrences, and “Why?”."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from database import clock
from schedules.inquiries import WhyForm
from schedules.models import Occurrence, Schedule
from schedules.models.occurrence import OccurrenceQuerySet, named_time
from schedules.outcomes import in_the_way, reason_in_short
from web.keyset import newest_first
from web.page import page

from .schedule import about, find

VIEW = "schedules.view_occurrence"


@page(VIEW)
def ledger(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = find(pk)
    status, source = request.GET.get("status", ""), request.GET.get("source", "")
    rows = schedule.occurrences.all()
    rows = rows.filter(status=status) if status in Occurrence.Status.values else rows
    rows = rows.filter(source=source) if source in Occurrence.Source.values else rows
    pages = newest_first(request, with_executions(rows))
    context = {
        **about(request, schedule, "ledger"),
        "pages": pages,
        "occurrences": occurrence_rows(pages.rows, running=running_now(schedule)),
        "statuses": Occurrence.Status.values,
        "sources": Occurrence.Source.values,
        "status": status,
        "source": source,
    }
    return render(request, "web/schedule/ledger.html", context)


@page("schedules.view_schedule")
def why(request: HttpRequest, pk: int) -> HttpResponse:
    """Explain why the schedule ran or did not run at a time, or whether it will."""
    schedule = find(pk)
    form = WhyForm.asked(request, schedule)
    answer = schedule.why(form.cleaned_data["at"], now=clock.now()) if form.is_valid() else None
    context = {**about(request, schedule, "why"), "form": form, "answer": answer}
    return render(request, "web/schedule/why.html", context)


def with_executions(rows: OccurrenceQuerySet) -> OccurrenceQuerySet:
    told = rows.select_related("schedule", "execution")
    heavy = ("schedule__last_result", "schedule__calendars", "execution__plan", "execution__last_result")
    return told.defer(*heavy)


def running_now(schedule: Schedule) -> int | None:
    """Return the id of the oldest running execution, or None; pending occurrences wait for this execution."""
    running: int | None = (
        schedule.executions.in_progress().order_by("pk").values_list("pk", flat=True).first()
    )
    return running


def occurrence_rows(rows: list[Occurrence], *, running: int | None) -> list[dict[str, Any]]:
    now = clock.now()
    return [
        {
            "occurrence": each,
            "execution": getattr(each, "execution", None),
            "reason": reason_in_short(each, now=now, running=running),
            "in_the_way": in_the_way(each, running),
            "at": named_time(each.nominal_at),
            "is_moved": each.source == Occurrence.Source.AUTO and each.planned_at != each.nominal_at,
        }
        for each in rows
    ]
