from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from activities.operations import Operation
from schedules.models import Backfill
from schedules.spec.wording import counted
from web import operating
from web.keyset import newest_first
from web.live import version_of
from web.page import fragment, page

from .ledger import told, with_executions
from .schedule import about
from .schedule import find as find_schedule

VIEW = "schedules.view_backfill"


def _operations() -> list[Operation[Any]]:
    from schedules.admin import BackfillAdmin

    return BackfillAdmin.operations


operating.register(Backfill, view_permission=VIEW, operations=_operations)


@page(VIEW)
def backfills(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = find_schedule(pk)
    pages = newest_first(request, Backfill.objects.filter(schedule=schedule).with_waiting())
    context = {**about(request, schedule, "backfills"), "pages": pages}
    return render(request, "web/schedule/backfills.html", context)


@page(VIEW)
def backfill(request: HttpRequest, pk: int) -> HttpResponse:
    found = _find(pk)
    pages = newest_first(request, with_executions(found.occurrences.all()))
    context = {
        **about(request, found.schedule, "backfills"),
        "title": f"Backfill {found.pk} of {found.schedule}",
        **_progress(found),
        "pages": pages,
        "told": told(pages.rows),
    }
    return render(request, "web/schedule/backfill.html", context)


@page(VIEW)
def progress_part(request: HttpRequest, pk: int) -> HttpResponse:
    shown = _progress(_find(pk))
    template = "web/schedule/_backfill_progress.html"
    return fragment(request, template, shown, version=shown["version"], is_final=shown["is_final"])


def _find(pk: int) -> Backfill:
    rows = Backfill.objects.with_waiting().select_related("schedule").defer("schedule__last_result")
    found = rows.filter(pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise Http404(f"There is no backfill {pk}.")
    return found


def _progress(backfill: Backfill) -> dict[str, Any]:
    at = backfill.progress()
    became = (
        (at.started - at.running, "ended"),
        (at.running, "running"),
        (at.waiting, "waiting"),
        (at.not_started, "not started"),
        (at.passed - at.added, "not wanted"),
        (at.total - at.passed, "not looked at yet"),
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
        "version": version_of(at, backfill.status),
        "is_final": not (is_open or at.waiting or at.running),
    }
