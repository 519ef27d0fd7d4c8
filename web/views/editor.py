"""The editor of schedules. Every button sends the whole form; only “Save” stores anything."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import get_object_or_404, render
from django.urls import reverse

from database import clock
from operations.initiator import Initiator
from schedules import permissions
from schedules.models import Conflict, Schedule
from web.editing.commands import apply
from web.editing.data import cleaned, data_of_copy, data_of_new, data_of_schedule, take_theirs
from web.editing.reading import Reading
from web.editing.saving import reconciled, save
from web.editing.shown import Shown, checked, warnings_of
from web.page import form_page, is_htmx, page


@form_page("schedules.add_schedule")
def new(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return _answer(request, None)
    return _show(request, Shown(_read(request, data_of_new(), None), is_checked=False))


@page("schedules.add_schedule")
def duplicate(request: HttpRequest, pk: int) -> HttpResponse:
    if not request.user.has_perm("schedules.view_schedule"):
        raise PermissionDenied("This page requires the permission “schedules.view_schedule”.")
    original = get_object_or_404(Schedule, pk=pk)
    return _show(request, Shown(_read(request, data_of_copy(original), None), is_checked=False))


@form_page("schedules.change_schedule")
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    schedule = get_object_or_404(Schedule, pk=pk)
    if schedule.status == Schedule.Status.CLOSED:
        messages.error(request, f"“{schedule}” is closed, so it can no longer be changed.")
        return HttpResponseRedirect(schedule.get_absolute_url())
    if request.method == "POST":
        return _answer(request, schedule)
    return _show(request, Shown(_read(request, data_of_schedule(schedule), schedule), is_checked=True))


def _answer(request: HttpRequest, schedule: Schedule | None) -> HttpResponse:
    data, command = cleaned(request.POST), request.POST.get("do", "")
    is_checked = command == "save" or bool(data.get("checked"))
    if command == "save":
        return _save(request, data, schedule)
    if command == "preview":
        shown = Shown(_read(request, data, schedule), is_checked=is_checked)
        return render(request, "web/editor/_preview.html", _context(request, shown))
    if command == "check":
        knows_code = request.user.has_perm(permissions.DEFINE_CODE)
        return _show(request, checked(_read(request, data, schedule), knows_code=knows_code))
    verb, _, part = command.partition(".")
    if verb == "take" and schedule is not None:
        take_theirs(data, part, schedule)
        said = "Your changes to this part were replaced with the saved version."
    else:
        said = apply(data, command)
    return _show(request, Shown(_read(request, data, schedule), is_checked=is_checked, said=said))


def _save(request: HttpRequest, data: QueryDict, schedule: Schedule | None) -> HttpResponse:
    assert request.user.is_authenticated
    reading = _read(request, data, schedule)
    saved: Schedule | None = None
    if reading.is_right:
        try:
            by = Initiator.user(request.user)
            saved = save(reading, user=request.user, initiator=by, now=reading.now)
        except Conflict as conflict:
            assert schedule is not None
            schedule.refresh_from_db()
            # The page now shows what others changed, so that saving again is a deliberate decision.
            reading = _read(request, reconciled(reading, token=conflict.token), schedule)
    if saved is None:
        return _show(request, Shown(reading, is_checked=True))
    messages.success(request, f"Saved “{saved}”.")
    for warning in warnings_of(reading) if request.user.has_perm(permissions.DEFINE_CODE) else ():
        messages.warning(request, f"{warning.label}: {' '.join(warning.texts)}")
    return HttpResponseRedirect(saved.get_absolute_url())


def _read(request: HttpRequest, data: QueryDict, schedule: Schedule | None) -> Reading:
    tells_secrets = request.user.has_perm(permissions.DEFINE_CODE)
    return Reading(data, schedule=schedule, now=clock.now(), tells_secrets=tells_secrets)


def _show(request: HttpRequest, shown: Shown) -> HttpResponse:
    template = "web/editor/_form.html" if is_htmx(request) else "web/editor/page.html"
    return render(request, template, _context(request, shown))


def _context(request: HttpRequest, shown: Shown) -> dict[str, Any]:
    schedule = shown.reading.schedule
    return {
        "shown": shown,
        "reading": shown.reading,
        "schedule": schedule,
        "mistakes": shown.mistakes,
        "is_check": request.POST.get("do") == "check",
        "is_quiet": is_htmx(request) or request.POST.get("do") == "preview",
        "title": f"Edit “{schedule}”" if schedule else "New schedule",
        "address": reverse("web:schedule-edit", args=[schedule.pk])
        if schedule
        else reverse("web:schedule-new"),
        "may_run": request.user.has_perm(permissions.RUN),
        "may_define_secrets": request.user.is_staff and request.user.has_perm("schedules.add_secret"),
    }
