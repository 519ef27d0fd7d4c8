"""What people and programs see when something is wrong: in their own format, and without a traceback."""

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
UNREACHABLE = "The database cannot be reached, or is too busy. What was accepted before is not lost."
BROKEN = "JIM could not answer. The log says why; what was accepted before is not lost."


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    if (address := _without_slash(request)) is not None:
        return HttpResponsePermanentRedirect(address, preserve_request=True)
    said = str(exception) if exception.args and isinstance(exception.args[0], str) else ""
    text = said or "There is no such page: it may have been removed, or the address is mistyped."
    return _answer(request, 404, "Not found", text)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = str(exception) or "You do not have the permission for this."
    return _answer(request, 403, "Not allowed", f"{text} An administrator can give it to you.")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = "This request makes no sense to JIM."
    if isinstance(exception, DisallowedModelAdminLookup):
        text = f"{exception}: use the filters beside the list."
    return _answer(request, 400, "Bad request", text)


def broken(request: HttpRequest) -> HttpResponse:
    if _is_api(request):
        return _problem(500, "Something is broken", BROKEN)
    return _bare_page(request, 500, "Something is broken", BROKEN)


class DatabaseAway:
    """Answer 503 while the database cannot be reached, instead of treating an outage as a fault of a page."""

    def __init__(self, get_response: Answer) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not is_outage(exception):
            return None
        logger.warning("%s %s was not answered: %s", request.method, request.path, in_a_line(exception))
        response = _bare_page(request, 503, "Try again in a moment", UNREACHABLE)
        response.headers["Retry-After"] = "2"
        return response


class DiscreetReports(SafeExceptionReporterFilter):
    """What is declared sensitive is kept out of the pages of JIM_DEBUG=1 as well."""

    def is_active(self, request: HttpRequest | None) -> bool:
        return True


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    text = "This form was open for too long, or cookies are blocked. Load the page again, and repeat it."
    return _answer(request, 403, "Not allowed", text)


def _without_slash(request: HttpRequest) -> str | None:
    """Find the address of a page that was asked for with a slash at its end, as many clients add one.

    In the admin, all addresses end with one.
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
    """Write a page without the database, the session or anything else that may be broken.

    "Try again" loads the page that failed; a form cannot be sent again by a link.
    """
    again = escape_leading_slashes(request.get_full_path()) if request.method in ("GET", "HEAD") else ""
    context = {"title": title, "text": text, "again": again}
    return HttpResponse(render_to_string("web/broken.html", context), status=code)


def _problem(code: int, title: str, text: str) -> HttpResponse:
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": code, "detail": text}
    return JsonResponse(body, status=code, content_type=PROBLEM_JSON)


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
