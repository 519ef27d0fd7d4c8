"""The home page; each of its parts polls on its own."""

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
PERMISSIONS = {
    "pulse": "execution.view_execution",
    "attention": "",
    "running": "execution.view_execution",
    "upcoming": "schedules.view_schedule",
}


@page("")
def home(request: HttpRequest) -> HttpResponse:
    now = clock.now()
    context: dict[str, Any] = {"title": "Home", "may_run": request.user.has_perm(permissions.RUN)}
    for name, context_of in _CONTEXTS.items():
        if not PERMISSIONS[name] or request.user.has_perm(PERMISSIONS[name]):
            context[name] = context_of(request, now)
    return render(request, "web/home.html", context)


@page(PERMISSIONS["pulse"])
def pulse_part(request: HttpRequest) -> HttpResponse:
    return _part_fragment(request, "pulse")


@page(PERMISSIONS["attention"])
def attention_part(request: HttpRequest) -> HttpResponse:
    return _part_fragment(request, "attention")


@page(PERMISSIONS["running"])
def running_part(request: HttpRequest) -> HttpResponse:
    return _part_fragment(request, "running")


@page(PERMISSIONS["upcoming"])
def upcoming_part(request: HttpRequest) -> HttpResponse:
    return _part_fragment(request, "upcoming")


def _part_fragment(request: HttpRequest, name: str) -> HttpResponse:
    part = _CONTEXTS[name](request, clock.now())
    context = {name: part, "may_run": request.user.has_perm(permissions.RUN)}
    return fragment(request, f"web/home/_{name}.html", context, version=part["version"])


def _pulse(request: HttpRequest, now: datetime) -> dict[str, Any]:
    beats = pulse(now)
    since = charts.first_hour(now)
    day = charts.day(history.ended_by_hour(since), now=now)
    # Heartbeats and ticks change all the time; the version covers only whether they arrive.
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
    return {"concerns": found, "version": version_of([each.change_key for each in found])}


def _running(request: HttpRequest, now: datetime) -> dict[str, Any]:
    rows = running(Execution.objects.in_progress(), now=now)
    return {"rows": rows, "version": version_of([row.change_key for row in rows])}


def _upcoming(request: HttpRequest, now: datetime) -> dict[str, Any]:
    is_coming = Q(status=Schedule.Status.ACTIVE, next_run_at__gt=now)
    rows = Schedule.objects.filter(is_coming).order_by("next_run_at")
    coming = list(rows.defer("last_result", "calendars", "memo", "description")[:MOST_UPCOMING])
    version = version_of([(each.pk, each.name, each.next_run_at, each.next_left_out_by) for each in coming])
    return {"rows": coming, "version": version}


_CONTEXTS = {"pulse": _pulse, "attention": _attention, "running": _running, "upcoming": _upcoming}
