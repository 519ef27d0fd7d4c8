"""Pages of one schedule: overview, export and revisions."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.text import slugify

from database import clock
from execution import history
from operations.operation import Operation
from schedules import registry
from schedules.as_code import as_yaml, document, needed_to_read, selected
from schedules.description import coming, state_of
from schedules.inquiries import CHANGES_SHOWN, REVISIONS_PER_PAGE, comparison
from schedules.models import Backfill, Refused, Schedule
from schedules.outcomes import pausing
from schedules.spec.wording import duration_words
from web import charts, operating
from web.lanes import Planned, lanes
from web.page import fragment, page, require, version_of
from web.running import running_of

VIEW = "schedules.view_schedule"
RESULTS_SHOWN = 6
RUNS_JUDGED = 100
TIMES_SHOWN = 10
MOST_BACKFILLS = 20
TABS = {
    "ledger": "Ledger",
    "why": "Why?",
    "backfills": "Backfills",
    "revisions": "Revisions",
    "code": "As code",
}


@page(VIEW)
def schedule(request: HttpRequest, pk: int) -> HttpResponse:
    found, now = find(pk), clock.now()
    ran = _ran(found)
    durations = charts.durations(ran)
    context = {
        **about(request, found, "overview"),
        **_now_context(found, ran, now),
        "times": coming(found, _upcoming(found, now)),
        "notes": found.spec_notes,
        "plan": _plan(found),
        "year": charts.year(history.started_by_time(found.pk), zone=found.zone, now=now),
        "durations": durations,
        "duration_points": durations.drawn(execution_url()) if durations else "",
        "policies": policies(found),
        "waiting": found.occurrences.pending().count(),
        "backfills": list(_open_backfills(found)),
    }
    return render(request, "web/schedule/overview.html", context)


@page(VIEW)
def now_part(request: HttpRequest, pk: int) -> HttpResponse:
    found = find(pk)
    shown = {"schedule": found, **_now_context(found, _ran(found), clock.now())}
    return fragment(request, "web/schedule/_now.html", shown, version=shown["version"])


@page(VIEW)
def export(request: HttpRequest, pk: int) -> HttpResponse:
    """Show or download the schedule as `exportschedules` writes it, with its calendars and templates."""
    found = find(pk)
    try:
        content = document(selected([found.name], tags=[]))
    except Refused as refused:
        raise Http404(str(refused)) from refused
    for permission in needed_to_read(content):
        require(request, permission)
    text = as_yaml(content)
    if "show" in request.GET:
        context = {**about(request, found, "code"), "text": text}
        return render(request, "web/schedule/code.html", context)
    name = f"{slugify(found.name) or f'schedule-{found.pk}'}.yaml"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(text, content_type="application/yaml; charset=utf-8", headers=headers)


@page(VIEW)
def revisions(request: HttpRequest, pk: int) -> HttpResponse:
    """List the revisions, and compare two of them."""
    schedule = find(pk)
    found = schedule.revisions()
    context = {
        **about(request, schedule, "revisions"),
        "page": Paginator(found, REVISIONS_PER_PAGE).get_page(request.GET.get("page")),
        "most": CHANGES_SHOWN,
        **comparison(found, request),
    }
    return render(request, "web/schedule/revisions.html", context)


def find(pk: int) -> Schedule:
    found = Schedule.objects.filter(pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise Http404(f"Schedule {pk} does not exist.")
    return found


def about(request: HttpRequest, schedule: Schedule, tab: str) -> dict[str, Any]:
    """Return the template context of the header that all pages of a schedule share."""
    verbs = [
        (verb, _url_of(request, verb, schedule)) for verb, _ in operating.operations_of(request, schedule)
    ]
    return {
        "title": f"{TABS[tab]}: {schedule.name}" if tab in TABS else schedule.name,
        "schedule": schedule,
        "state": state_of(schedule),
        "is_overdue": schedule.is_overdue(clock.now()),
        "sentence": schedule.spec_in_words,
        "zone": schedule.zone,
        "tab": tab,
        "verbs": verbs,
        "may_run": any(verb.name == "run" for verb, _ in verbs),
        "may_edit": request.user.has_perm("schedules.change_schedule") and schedule.status != "closed",
        "may_add": request.user.has_perm("schedules.add_schedule"),
        "run_key": uuid.uuid4(),
    }


def _url_of(request: HttpRequest, verb: Operation[Any], schedule: Schedule) -> str:
    """Return the address of an operation, which returns to this tab unless the operation is final."""
    back = "" if verb.is_final else request.get_full_path()
    return operating.operation_url(verb.name, [schedule], back=back)


def execution_url() -> Callable[[int], str]:
    """Return a function that builds the address of an execution from its id, faster than `reverse`."""
    before, _, after = reverse("web:execution", args=[0]).rpartition("0")
    return lambda pk: f"{before}{pk}{after}"


def policies(schedule: Schedule) -> list[tuple[str, str]]:
    lengths = {
        "Catch-up window": schedule.catch_up_seconds,
        "Timeout": schedule.timeout_seconds,
        "Deadline": schedule.deadline_seconds,
    }
    told = [("Overlap policy", schedule.get_overlap_display())]
    told += [(name, duration_words(seconds)) for name, seconds in lengths.items() if seconds]
    if schedule.catch_up_seconds is None:
        told.append(("Catch-up window", "unlimited: a run starts no matter how late it is"))
    if schedule.catch_up_seconds == 0:
        told.append(("Catch-up window", "none: a late run does not start"))
    told.append(("On failure", registry.failure_policies.get(schedule.on_failure, schedule.on_failure)))
    if schedule.pause_on_failure:
        failures, among = schedule.failures_to_pause, schedule.failures_among
        told.append(("Pause on failure", f"when {failures} of the last {among} executions failed"))
    return told


def _ran(schedule: Schedule) -> list[history.Ran]:
    return history.recent([schedule.pk], count=RUNS_JUDGED).get(schedule.pk, [])


def _now_context(schedule: Schedule, ran: list[history.Ran], now: datetime) -> dict[str, Any]:
    """Return the template context of the part of the page that refreshes itself."""
    rows = running_of(schedule, ran, now=now)
    ended = [each for each in ran if each.finished_at is not None][:RESULTS_SHOWN]
    usual = history.usual_duration(ran)
    counters = (schedule.started_count, schedule.failed_count, schedule.skipped_count, schedule.missed_count)
    shown = (schedule.token, schedule.next_run_at, schedule.recent_outcomes, *counters)
    return {
        "rows": rows,
        "ended": ended,
        "usual": usual,
        "bars": charts.bars(ran, url=execution_url()),
        "paused_by": pausing(schedule) if schedule.is_paused else None,
        "version": version_of(*shown, ended, [row.change_key for row in rows]),
    }


def _upcoming(schedule: Schedule, now: datetime) -> Any:
    try:
        return schedule.upcoming(TIMES_SHOWN, now=now)
    except Refused:
        return []  # the spec is broken, which the page shows


def _plan(schedule: Schedule) -> dict[str, Any]:
    steps = list(schedule.steps.select_related("template"))
    kinds = registry.step_types
    groups = {index: number for number, index in enumerate(sorted({each.index for each in steps}), 1)}
    drawn = [
        Planned(
            each.name,
            groups[each.index],
            kinds[each.step_type].title if each.step_type in kinds else each.step_type,
            each.run_if,
        )
        for each in steps
    ]
    return {"steps": list(zip(steps, drawn, strict=True)), "lanes": lanes(drawn)}


def _open_backfills(schedule: Schedule) -> Any:
    rows = Backfill.objects.filter(schedule=schedule).moving()
    return rows.with_waiting().order_by("-pk")[:MOST_BACKFILLS]
