"""Error responses as problem details (RFC 9457)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import (
    NON_FIELD_ERRORS,
    ObjectDoesNotExist,
    PermissionDenied,
    ValidationError,
)
from django.db import IntegrityError
from django.http import Http404
from rest_framework import exceptions, serializers
from rest_framework.response import Response
from rest_framework.views import set_rollback

from database.outage import in_a_line, is_outage
from operations.field_errors import dotted, field_errors
from schedules.models import Conflict, Refused
from schedules.permissions import NotYours
from schedules.vault import VaultError

from .permissions import refusal
from .throttling import AnonymousThrottle

logger = logging.getLogger(__name__)
PROBLEM_JSON = "application/problem+json"
CREDENTIALS_NEEDED = (
    "Send an API token in the “Authorization: Bearer jim_…” header. Create a token on the page “API tokens”, "
    "or with “manage.py createtoken”."
)
TITLES = {
    400: "Invalid request",
    401: "Authentication required",
    403: "Permission denied",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    412: "The version is outdated",
    415: "Unsupported content type",
    428: "If-Match required",
    429: "Too many requests",
    503: "Temporarily unavailable",
}


class Problem(exceptions.APIException):
    """An error response with a custom status code and optional extra members and headers."""

    def __init__(
        self,
        detail: str,
        *,
        status_code: int,
        code: str = "refused",
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail, code)
        self.status_code, self.headers, self.members = status_code, dict(headers or {}), members


class FieldProblemSerializer(serializers.Serializer[Any]):
    field = serializers.CharField(
        help_text="The path of the field, such as `steps.0.name`. Empty if the error concerns the whole "
        "request."
    )
    code = serializers.CharField(help_text="The kind of error, such as `required` or `unique`.")
    detail = serializers.CharField(help_text="What is wrong with the field.")


class ProblemSerializer(serializers.Serializer[Any]):
    type = serializers.CharField(
        help_text="An identifier for the kind of problem, such as `urn:jim:problem:invalid`. Programs can "
        "rely on this identifier."
    )
    title = serializers.CharField(
        help_text="A short description of the status code, such as `Permission denied`."
    )
    status = serializers.IntegerField(help_text="The HTTP status code.")
    detail = serializers.CharField(help_text="What went wrong, and what to do about the problem.")
    errors = FieldProblemSerializer(  # type: ignore[assignment]
        many=True,
        required=False,
        help_text="The errors in the fields of the request. Included only if the request is invalid (400).",
    )


def explain(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Return the response for an exception that DRF caught, or None if the exception is unexpected."""
    known = refusal(context["request"], error) if isinstance(error, NotYours) else _known(error)
    if isinstance(known, exceptions.NotAuthenticated):
        known = _throttled(context) or known
    if known is None:
        return None
    set_rollback()
    headers = {**getattr(known, "headers", {}), **_headers(known)}
    return Response(_body(known), status=known.status_code, headers=headers, content_type=PROBLEM_JSON)


def _throttled(context: Mapping[str, Any]) -> exceptions.Throttled | None:
    """Return an error if the IP address has sent too many requests without credentials, else None.

    DRF refuses requests without credentials before it checks the throttles of the view.
    """
    throttle = AnonymousThrottle()
    if throttle.allow_request(context["request"], context["view"]):
        return None
    return exceptions.Throttled(throttle.wait(), f"Too many requests without a token. {CREDENTIALS_NEEDED}")


def _known(error: Exception) -> exceptions.APIException | None:
    match error:
        case exceptions.NotAuthenticated():
            error.detail = exceptions.ErrorDetail(CREDENTIALS_NEEDED, error.default_code)
            return error
        case exceptions.APIException():
            return error
        case Http404() | ObjectDoesNotExist():
            return exceptions.NotFound(
                "The object was not found. Check the URL. The object may have been deleted."
            )
        case PermissionDenied():
            return exceptions.PermissionDenied(str(error) or None)
        case ValidationError():
            return exceptions.ValidationError(errors_by_field(error))
        case Conflict():
            headers = {"ETag": f'"{error.token}"'}
            return Problem(str(error), status_code=412, code="changed", headers=headers, token=error.token)
        case Refused():
            blocked_by = getattr(error, "blocked_by", None)
            members = {"blocked_by": blocked_by} if blocked_by is not None else {}
            return Problem(str(error), status_code=409, **members)
        case VaultError():
            return Problem(str(error), status_code=409)
        case IntegrityError():
            logger.warning("two requests conflicted: %s", error)
            detail = (
                "At the same time, another request used this name or changed this object. "
                "Reload the object or choose another name, then try again."
            )
            return Problem(detail, status_code=409, code="met")
        case _ if is_outage(error):
            logger.warning("the database cannot be reached: %s", in_a_line(error))
            detail = "The database is unreachable or too busy. Try again in a few seconds."
            return Problem(detail, status_code=503, code="unavailable", headers={"Retry-After": "2"})
    return None


def errors_by_field(error: ValidationError) -> Any:
    """Return the messages of a Django ValidationError grouped by field, as DRF expects them."""
    details: dict[str, list[exceptions.ErrorDetail]] = defaultdict(list)
    for path, message, code in field_errors(error):
        details[dotted(path) or NON_FIELD_ERRORS].append(exceptions.ErrorDetail(message, code))
    return dict(details)


def _headers(error: exceptions.APIException) -> dict[str, str]:
    headers = {}
    if auth := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = auth
    if (wait := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(max(1, round(wait)))
    return headers


def _body(error: exceptions.APIException) -> dict[str, Any]:
    code = error.status_code
    body: dict[str, Any] = {
        "type": f"urn:jim:problem:{_kind(error)}",
        "title": TITLES.get(code, "Request failed"),
        "status": code,
    }
    if isinstance(error, exceptions.ValidationError):
        fields = [
            {"field": field, "code": getattr(text, "code", None) or "invalid", "detail": str(text)}
            for field, text in _flat("", error.detail)
        ]
        return body | {"detail": _summary(fields), "errors": fields}
    return body | {"detail": str(error.detail)} | getattr(error, "members", {})


def _kind(error: exceptions.APIException) -> str:
    if isinstance(error, exceptions.ValidationError):
        return "invalid"
    return str(getattr(error.detail, "code", None) or error.default_code).replace("_", "-")


def _summary(fields: list[dict[str, str]]) -> str:
    first = fields[0]
    text = f"{first['field']}: {first['detail']}" if first["field"] else first["detail"]
    return text if len(fields) == 1 else f"{text} (and {len(fields) - 1} more)"


def _flat(path: str, detail: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            is_whole = name in (NON_FIELD_ERRORS, "non_field_errors")
            yield from _flat(path if is_whole else _joined(path, name), inner)
    elif isinstance(detail, list):
        for number, inner in enumerate(detail):
            yield from _flat(path if not isinstance(inner, Mapping | list) else _joined(path, number), inner)
    else:
        yield path, detail


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
