from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

# Only resources of JIM itself, no inline scripts, and no embedding in other sites.
POLICY = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
CONTENT_SECURITY_POLICY = "; ".join(f"{name} {allowed}" for name, allowed in POLICY.items())
Answer = Callable[[HttpRequest], HttpResponse]


def content_security_policy(get_response: Answer) -> Answer:
    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        return response

    return answer


def not_stored(get_response: Answer) -> Answer:
    """Prevent browsers and proxies from storing responses, unless the view allows it.

    Static files are not affected, as they are served before this middleware.
    """

    def answer(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return answer
