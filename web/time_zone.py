"""The time zone that a browser has chosen for its pages."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from schedules.spec.zones import time_zones, zone_of

COOKIE = "jim_time_zone"
YEAR_SECONDS = 365 * 86_400


def chosen_zone(request: HttpRequest) -> ZoneInfo | None:
    """Return the time zone in the cookie, or None if there is none or it is invalid."""
    name = request.COOKIES.get(COOKIE, "")
    return zone_of(name) if name in time_zones() else None


def zone_for(request: HttpRequest) -> ZoneInfo:
    return chosen_zone(request) or zone_of("UTC")


def remember(response: HttpResponse, zone: str) -> None:
    response.set_cookie(
        COOKIE, zone, max_age=YEAR_SECONDS, secure=settings.JIM_HTTPS, httponly=True, samesite="Lax"
    )
