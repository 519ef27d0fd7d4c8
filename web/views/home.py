from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from web.page import page


@page("")
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "web/home.html", {"title": "Home"})
