"""Decorators and responses that all pages share: sign-in, permissions, polling, the browser's time zone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.gzip import gzip_page

from schedules.spec.zones import time_zones, zone_of

COOKIE = "jim_time_zone"
YEAR_SECONDS = 365 * 86_400


def chosen_zone(request: HttpRequest) -> ZoneInfo | None:
    """Return the time zone in the cookie, or None if the cookie is missing or invalid."""
    name = request.COOKIES.get(COOKIE, "")
    return zone_of(name) if name in time_zones() else None


def zone_for(request: HttpRequest) -> ZoneInfo:
    return chosen_zone(request) or zone_of("UTC")


def remember(response: HttpResponse, zone: str) -> None:
    response.set_cookie(
        COOKIE, zone, max_age=YEAR_SECONDS, secure=settings.JIM_HTTPS, httponly=True, samesite="Lax"
    )


P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]
READ = ("GET", "HEAD")
# htmx stops polling on this status.
STOP_POLLING = 286


def page(permission: str, *, methods: tuple[str, ...] = READ) -> Callable[[View[P]], View[P]]:
    """Decorate a view: require sign-in and `permission` (unless empty), and use the browser's time zone."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def guarded(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            if request.method not in methods:
                return HttpResponseNotAllowed(methods)
            if not request.user.is_authenticated:
                return _sign_in(request)
            if permission:
                require(request, permission)
            with timezone.override(zone_for(request)):
                return view(request, *args, **kwargs)

        guarded.needs = permission  # type: ignore[attr-defined]
        return cast(View[P], never_cache(gzip_page(guarded)))

    return decorate


def require(request: HttpRequest, permission: str) -> None:
    if not request.user.has_perm(permission):
        raise PermissionDenied(f"This page requires the permission “{permission}”.")


def form_page(permission: str) -> Callable[[View[P]], View[P]]:
    """Decorate a view like `page`, but also accept POST, for a form that is sent to its own address."""
    return page(permission, methods=(*READ, "POST"))


def fragment(
    request: HttpRequest, template: str, context: Mapping[str, Any], *, version: str, is_final: bool = False
) -> HttpResponse:
    """Render a part of a page that polls, or return status 204 if `version` has not changed.

    The rendered part sends `version` with its next request, and stops polling once `is_final` is true.
    """
    if not is_final and request.GET.get("version") == version:
        return HttpResponse(status=204)
    answer = render(request, template, {**context, "version": version, "is_final": is_final})
    answer.status_code = STOP_POLLING if is_final and is_htmx(request) else 200
    return answer


def version_of(*seen: object) -> str:
    """Return a hash of these values and the time zone. All processes compute the same hash."""
    zone = timezone.get_current_timezone_name()
    return hashlib.sha256(repr((zone, seen)).encode()).hexdigest()[:16]


def is_htmx(request: HttpRequest) -> bool:
    return bool(getattr(request, "htmx", False))


def is_asked_by(request: HttpRequest, part: str) -> bool:
    """Return whether the request asks only for the part of the page with this element id."""
    htmx = getattr(request, "htmx", None)
    return bool(htmx) and htmx.target == part  # type: ignore[union-attr]


def _sign_in(request: HttpRequest) -> HttpResponse:
    if is_htmx(request):
        return HttpResponse(status=204, headers={"HX-Refresh": "true"})
    return redirect_to_login(request.get_full_path())
