"""The admin pages of a schedule besides its form, and the pages that pause or resume all schedules."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from database import clock
from operations.initiator import initiator_of
from schedules import permissions
from schedules.description import coming
from schedules.inquiries import CHANGES_SHOWN, REVISIONS_PER_PAGE, WhyForm, comparison
from schedules.models import Schedule
from schedules.operations import VERBS, _are


def overview(request: HttpRequest, schedule: Schedule) -> dict[str, Any]:
    described = schedule.describe(now=clock.now())
    times = coming(schedule, described.upcoming)
    return {
        "is": described,
        "state": described.state,
        "backfills": [(each, each.passed - each.waiting) for each in described.backfills],
        "notes": schedule.spec_notes,
        "zone": schedule.zone,
        "times": times,
        "has_jitter": any(time.starts for time in times),
        "has_notes": any(time.note or time.left_out_by for time in times),
        "skips": sorted(described.counters.skipped_by_reason.items()),
        "can_run": request.user.has_perm(permissions.RUN),
        "can_see_executions": request.user.has_perm("execution.view_execution"),
        "can_see_backfills": request.user.has_perm("schedules.view_backfill"),
    }


def why_view(admin: ModelAdmin[Schedule], request: HttpRequest, pk: int) -> HttpResponse:
    """Show the page that explains why a schedule ran, did not run or will run at a given time."""
    schedule = _schedule(admin, request, pk)
    form = WhyForm.asked(request, schedule)
    answer = schedule.why(form.cleaned_data["at"], now=clock.now()) if form.is_valid() else None
    context = {"title": "Why?", "form": form, "answer": answer}
    return _page(admin, request, schedule, "why", context)


def revisions_view(admin: ModelAdmin[Schedule], request: HttpRequest, pk: int) -> HttpResponse:
    """Show the revisions of a schedule, and the differences between the two chosen revisions."""
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
        raise Http404(f"Schedule {pk} was not found.")
    return schedule


def _page(
    admin: ModelAdmin[Schedule], request: HttpRequest, schedule: Schedule, name: str, context: dict[str, Any]
) -> HttpResponse:
    shared = {**admin.admin_site.each_context(request), "opts": admin.opts, "schedule": schedule}
    shared["subtitle"] = str(schedule)
    return TemplateResponse(request, f"admin/schedules/schedule/{name}.html", {**shared, **context})


def all_view(admin: ModelAdmin[Schedule], request: HttpRequest, name: str) -> HttpResponse:
    if not (request.user.has_perm(permissions.RUN) and admin.has_view_permission(request)):
        raise PermissionDenied
    verb, back = VERBS[name], reverse("admin:schedules_schedule_changelist")
    form = verb.form(request.POST if request.method == "POST" else None)
    if form.is_valid():
        said = verb.perform(form.cleaned_data, initiator_of(request), clock.now())
        admin.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(back)
    context = {
        **admin.admin_site.each_context(request),
        "title": verb.label,
        "opts": admin.opts,
        "operation": verb,
        "total": f"{_are(verb.affected().count())} affected.",
        "form": form,
        "back": back,
    }
    return TemplateResponse(request, "admin/confirmation.html", context)
