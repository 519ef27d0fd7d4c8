from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from execution.models import Limit
from execution.models.limited import MOST_COUNTED, usage
from web.page import page

MOST_SHOWN = 500


@page("execution.view_limit")
def limits(request: HttpRequest) -> HttpResponse:
    used = usage()
    rows = [(limit, *used.get(limit.key, (0, 0))) for limit in Limit.objects.order_by("key")[:MOST_SHOWN]]
    return render(
        request, "web/limits.html", {"title": "Limits and pools", "rows": rows, "most": MOST_COUNTED}
    )
