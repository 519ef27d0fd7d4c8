"""Is my system healthy? Each part asks on its own whether it has changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from database import clock
from execution import history
from execution.models import Execution
from execution.queue.pulse import MOST_COUNTED, pulse
from schedules import permissions
from schedules.models import Schedule
from web import charts
from web.attention import concerns
from web.page import fragment, page, version_of
from web.running import running

MOST_UPCOMING = 10
PARTS = {
    "pulse": "execution.view_execution",
    "attention": "",
    "running": "execution.view_execution",
    "upcoming": "schedules.view_schedule",
}


@page("")
def home(request: HttpRequest) -> HttpResponse:
    now = clock.now()
    context: dict[str, Any] = {"title": "Home", "may_run": request.user.has_perm(permissions.RUN)}
    for name, part in _PARTS.items():
        if not PARTS[name] or request.user.has_perm(PARTS[name]):
            context[name] = part(request, now)
    return render(request, "web/home.html", context)


@page(PARTS["pulse"])
def pulse_part(request: HttpRequest) -> HttpResponse:
    return _part(request, "pulse")


@page(PARTS["attention"])
def attention_part(request: HttpRequest) -> HttpResponse:
    return _part(request, "attention")


@page(PARTS["running"])
def running_part(request: HttpRequest) -> HttpResponse:
    return _part(request, "running")


@page(PARTS["upcoming"])
def upcoming_part(request: HttpRequest) -> HttpResponse:
    return _part(request, "upcoming")


def _part(request: HttpRequest, name: str) -> HttpResponse:
    shown = _PARTS[name](request, clock.now())
    context = {name: shown, "may_run": request.user.has_perm(permissions.RUN)}
    return fragment(request, f"web/home/_{name}.html", context, version=shown["version"])


def _pulse(request: HttpRequest, now: datetime) -> dict[str, Any]:
    beats = pulse(now)
    since = charts.first_hour(now)
    day = charts.day(history.ended_by_hour(since), now=now)
    # Beats and ticks come all the time: only whether they do is news.
    counts = (beats.running, beats.queued, beats.overdue, beats.schedules, beats.workers, beats.seats)
    version = version_of(*counts, beats.is_ticking, day)
    return {
        "beats": beats,
        "day": day,
        "since": since.strftime("%Y-%m-%dT%H:%MZ"),
        "most": MOST_COUNTED,
        "version": version,
    }


def _attention(request: HttpRequest, now: datetime) -> dict[str, Any]:
    found = concerns(request, now=now)
    return {"concerns": found, "version": version_of([each.shown for each in found])}


def _running(request: HttpRequest, now: datetime) -> dict[str, Any]:
    rows = running(Execution.objects.in_progress(), now=now)
    return {"rows": rows, "version": version_of([row.shown for row in rows])}


def _upcoming(request: HttpRequest, now: datetime) -> dict[str, Any]:
    is_coming = Q(status=Schedule.Status.RUNNING, next_run_at__gt=now)
    rows = Schedule.objects.filter(is_coming).order_by("next_run_at")
    coming = list(rows.defer("last_result", "calendars", "memo", "description")[:MOST_UPCOMING])
    version = version_of([(each.pk, each.name, each.next_run_at, each.next_left_out_by) for each in coming])
    return {"rows": coming, "version": version}


_PARTS = {"pulse": _pulse, "attention": _attention, "running": _running, "upcoming": _upcoming}
