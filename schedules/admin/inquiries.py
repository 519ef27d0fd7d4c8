"""Pages that answer a question about one schedule and change nothing."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from activities.admin import as_json
from database import clock
from schedules.form_fields import WallTime
from schedules.models import Schedule
from schedules.revisions import Change, Revision, Revisions, compare

REVISIONS_PER_PAGE = 25
CHANGES_SHOWN = 10
DIFFERENCES_SHOWN = 500


class WhyForm(forms.Form):
    at = WallTime(label="Time")

    @classmethod
    def asked(cls, request: HttpRequest, schedule: Schedule) -> WhyForm:
        """Links name moments; the browser's field knows no offset, and shows them on the schedule's clock."""
        form = cls(request.GET if "at" in request.GET else None)
        form.fields["at"].help_text = f"On the clock of {schedule.zone}."
        at = form.cleaned_data["at"] if form.is_valid() else None
        if at is not None and at.tzinfo is not None:
            form.data = {"at": f"{at.astimezone(schedule.zone):%Y-%m-%dT%H:%M:%S}"}
        return form


def why_view(admin: ModelAdmin[Schedule], request: HttpRequest, pk: int) -> HttpResponse:
    """Why it ran at a time, or did not, or whether it will."""
    schedule = _schedule(admin, request, pk)
    form = WhyForm.asked(request, schedule)
    answer = schedule.why(form.cleaned_data["at"], now=clock.now()) if form.is_valid() else None
    context = {"title": "Why?", "form": form, "answer": answer}
    return _page(admin, request, schedule, "why", context)


def revisions_view(admin: ModelAdmin[Schedule], request: HttpRequest, pk: int) -> HttpResponse:
    """Who changed what, and when; and what differs between any two of them."""
    schedule = _schedule(admin, request, pk)
    revisions = schedule.revisions()
    page = Paginator(revisions, REVISIONS_PER_PAGE).get_page(request.GET.get("page"))
    context = {"title": "Revisions", "page": page, "most": CHANGES_SHOWN, **comparison(revisions, request)}
    return _page(admin, request, schedule, "revisions", context)


def _schedule(admin: ModelAdmin[Schedule], request: HttpRequest, pk: int) -> Schedule:
    if not admin.has_view_permission(request):
        raise PermissionDenied
    schedule = Schedule.objects.filter(pk=pk).first() if pk < 2**63 else None
    if schedule is None:
        raise Http404(f"There is no schedule {pk}.")
    return schedule


def _page(
    admin: ModelAdmin[Schedule], request: HttpRequest, schedule: Schedule, name: str, context: dict[str, Any]
) -> HttpResponse:
    shared = {**admin.admin_site.each_context(request), "opts": admin.opts, "schedule": schedule}
    shared["subtitle"] = str(schedule)
    return TemplateResponse(request, f"admin/schedules/schedule/{name}.html", {**shared, **context})


def comparison(revisions: Revisions, request: HttpRequest) -> dict[str, Any]:
    """Of the two that were asked for; else of the newest one and the one before."""
    newest = len(revisions)
    after = _number(request.GET.get("to"), among=newest) or newest
    before = _number(request.GET.get("from"), among=newest) or max(after - 1, 1)
    if not newest:
        return {}
    older, newer = _revision(revisions, before), _revision(revisions, after)
    differences = compare(older.definition, newer.definition)
    return {
        "older": older,
        "newer": newer,
        "differences": [_shown(change) for change in differences[:DIFFERENCES_SHOWN]],
        "is_cut": len(differences) > DIFFERENCES_SHOWN,
    }


def _shown(change: Change) -> Change:
    """With its values as text."""
    before, after = (
        value if value is None or isinstance(value, str) else as_json(value)
        for value in (change.before, change.after)
    )
    return Change(change.path, before, after)


def _number(text: str | None, *, among: int) -> int | None:
    is_number = text is not None and text.isascii() and text.isdecimal() and len(text) < 10
    number = int(text or 0) if is_number else 0
    return number if 1 <= number <= among else None


def _revision(revisions: Revisions, number: int) -> Revision:
    return revisions[len(revisions) - number]
