from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from web.page import page


@page("")
def tokens(request: HttpRequest) -> HttpResponse:
    return render(request, "web/tokens.html", {"title": "API tokens"})
