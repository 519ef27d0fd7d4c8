"""Error responses as pages or problem JSON, without tracebacks."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import is_valid_path
from django.utils.encoding import iri_to_uri
from django.utils.http import escape_leading_slashes
from django.views.debug import SafeExceptionReporterFilter

from api.errors import PROBLEM_JSON
from database.outage import in_a_line, is_outage

from .headers import Answer

logger = logging.getLogger(__name__)
UNREACHABLE = "The database cannot be reached or is too busy. Work that was already accepted is not lost."
BROKEN = (
    "An internal error occurred. The server log has the details. Work that was already accepted is not lost."
)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if (address := _without_slash(request)) is not None:
        return HttpResponsePermanentRedirect(address, preserve_request=True)
    reason = str(exception) if exception.args and isinstance(exception.args[0], str) else ""
    text = reason or "This page does not exist. Check the address, or go to the home page."
    return _answer(request, 404, "Not found", text)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = str(exception) or "You do not have permission to do this."
    return _answer(request, 403, "Not allowed", f"{text} Ask an administrator for access.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = "JIM cannot process this request."
    if isinstance(exception, DisallowedModelAdminLookup):
        text = f"{exception}. Use the filters next to the list instead."
    return _answer(request, 400, "Bad request", text)


def broken(request: HttpRequest) -> HttpResponse:
    if _is_api(request):
        return _problem(500, "Internal error", BROKEN)
    return _bare_page(request, 500, "Internal error", BROKEN)


class DatabaseAway:
    """Middleware that answers with status 503 while the database cannot be reached, instead of 500."""

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not is_outage(exception):
            return None
        logger.warning("%s %s failed: %s", request.method, request.path, in_a_line(exception))
        response = _bare_page(request, 503, "Try again in a moment", UNREACHABLE)
        response.headers["Retry-After"] = "2"
        return response


class DiscreetReports(SafeExceptionReporterFilter):
    """A filter that hides sensitive variables in error pages, even with JIM_DEBUG=1."""

    def is_active(self, request: HttpRequest | None) -> bool:
        return True


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    text = "The form has expired, or cookies are blocked. Reload the page and try again."
    return _answer(request, 403, "Not allowed", text)


def _without_slash(request: HttpRequest) -> str | None:
    """Return the address without its trailing slash if a page exists there, otherwise None.

    Many clients add a slash. Addresses of the admin are left out, because all of them end with one.
    """
    path = request.path_info.rstrip("/")
    match = path != request.path_info and is_valid_path(path)
    if not match or match.app_name == "admin":
        return None
    query = request.META.get("QUERY_STRING", "")
    return iri_to_uri(f"{path}?{query}" if query else path)


def _answer(request: HttpRequest, code: int, title: str, text: str) -> HttpResponse:
    if _is_api(request):
        return _problem(code, title, text)
    return render(request, "web/error.html", {"title": title, "text": text, "code": code}, status=code)


def _bare_page(request: HttpRequest, code: int, title: str, text: str) -> HttpResponse:
    """Render a page without using the database or the session, which may have caused the error.

    The page offers the link “Try again” only after requests that a link can repeat, not after forms.
    """
    again = escape_leading_slashes(request.get_full_path()) if request.method in ("GET", "HEAD") else ""
    context = {"title": title, "text": text, "again": again}
    return HttpResponse(render_to_string("web/broken.html", context), status=code)


def _problem(code: int, title: str, text: str) -> HttpResponse:
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": code, "detail": text}
    return JsonResponse(body, status=code, content_type=PROBLEM_JSON)


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
