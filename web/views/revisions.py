from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from web.page import page

from .schedule import about, find


@page("schedules.view_schedule")
def revisions(request: HttpRequest, pk: int) -> HttpResponse:
    """Who changed what, and when; and what differs between any two of them."""
    from schedules.inquiries import CHANGES_SHOWN, REVISIONS_PER_PAGE, comparison

    schedule = find(pk)
    found = schedule.revisions()
    context = {
        **about(request, schedule, "revisions"),
        "page": Paginator(found, REVISIONS_PER_PAGE).get_page(request.GET.get("page")),
        "most": CHANGES_SHOWN,
        **comparison(found, request),
    }
    return render(request, "web/schedule/revisions.html", context)
