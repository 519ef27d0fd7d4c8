"""Pages of backfills."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from execution.models import Execution
from schedules.models import Backfill
from schedules.spec.wording import counted
from web import operating
from web.keyset import address, newest_first
from web.page import fragment, is_asked_by, page, version_of

from .ledger import occurrence_rows, with_executions
from .schedule import about
from .schedule import find as find_schedule

VIEW = "schedules.view_backfill"


operating.register(Backfill, view_permission=VIEW)


@page(VIEW)
def backfills(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = find_schedule(pk)
    pages = newest_first(request, Backfill.objects.filter(schedule=schedule).with_waiting())
    context = {**about(request, schedule, "backfills"), "pages": pages}
    return render(request, "web/schedule/backfills.html", context)


@page(VIEW)
def backfill(request: HttpRequest, pk: int) -> HttpResponse:
    found = _find(pk)
    if is_asked_by(request, "backfill"):
        return _news(request, found)
    context = {
        **about(request, found.schedule, "backfills"),
        "title": f"Backfill {found.pk} of {found.schedule}",
        **_progress(found),
        **_times(request, found),
    }
    return render(request, "web/schedule/backfill.html", context)


def _news(request: HttpRequest, found: Any) -> HttpResponse:
    """Return the part of the page that refreshes itself. The times are looked up only after a change."""
    shown, template = _progress(found), "web/schedule/_backfill_progress.html"
    if not shown["is_final"] and request.GET.get("version") == shown["version"]:
        return HttpResponse(status=204)
    shown |= _times(request, found)
    return fragment(request, template, shown, version=shown["version"], is_final=shown["is_final"])


def _find(pk: int) -> Any:
    """Return the backfill with its counts, in one query."""
    running = Execution.objects.in_progress().filter(schedule=OuterRef("schedule"))
    mine = running.filter(occurrence__backfill=OuterRef("pk")).order_by().values("status")
    rows = Backfill.objects.with_waiting().annotate(
        running_now=Subquery(running.order_by("pk").values("pk")[:1]),
        running_count=Coalesce(Subquery(mine.annotate(count=Count("pk")).values("count")), 0),
    )
    rows = rows.select_related("schedule").defer("schedule__last_result")
    found = rows.filter(pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise Http404(f"Backfill {pk} does not exist.")
    return found


def _times(request: HttpRequest, backfill: Any) -> dict[str, Any]:
    """Return the template context of one page of the backfill's times."""
    pages = newest_first(request, with_executions(backfill.occurrences.all()))
    return {
        "pages": pages,
        "occurrences": occurrence_rows(pages.rows, running=backfill.running_now),
        "zone": backfill.schedule.zone,
        "here": address(request),
    }


def _progress(backfill: Any) -> dict[str, Any]:
    at = backfill.progress(running=backfill.running_count)
    became = (
        (at.started - at.running, "ended"),
        (at.running, "running"),
        (at.waiting, "waiting"),
        (at.not_started, "not started"),
        (at.passed - at.added, "filtered out"),
        (at.total - at.passed, "not reached yet"),
    )
    is_open = backfill.status == Backfill.Status.OPEN
    is_waiting = at.waiting > 0 and backfill.status == Backfill.Status.DONE
    return {
        "backfill": backfill,
        "at": at,
        "done": at.passed - at.waiting - at.running,
        "became": [(count, name) for count, name in became if count],
        "in_words": f"{at.passed - at.waiting - at.running:,} of {counted(at.total, 'time')}",
        "backfill_state": "waiting" if is_waiting else backfill.status,
        "version": version_of(at, backfill.status, backfill.running_now),
        "is_final": not (is_open or at.waiting or at.running),
    }
