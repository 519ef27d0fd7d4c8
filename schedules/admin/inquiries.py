"""Pages that answer a question about one schedule and change nothing."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from database import clock
from schedules.inquiries import CHANGES_SHOWN, REVISIONS_PER_PAGE, WhyForm, comparison
from schedules.models import Schedule


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
