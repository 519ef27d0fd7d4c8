"""Errors as problem details (RFC 9457): what is wrong, with which field, and what to do."""

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
from .throttling import StrangerThrottle

logger = logging.getLogger(__name__)
PROBLEM_JSON = "application/problem+json"
NOBODY = "Send “Authorization: Bearer jim_…”: tokens are made under Settings, or by “manage.py createtoken”."
TITLES = {
    400: "The request is not valid",
    401: "Sign in first",
    403: "You may not do this",
    404: "There is no such thing",
    405: "This method does not exist here",
    406: "Only JSON is spoken here",
    409: "Its state does not allow this",
    412: "It was changed meanwhile",
    415: "Send JSON",
    428: "Say which version you change",
    429: "Too many requests",
    503: "Try again in a moment",
}


class Problem(exceptions.APIException):
    """An error with members or headers of its own."""

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
    field = serializers.CharField(help_text="Its path, such as `steps.0.name`; empty for the whole.")
    code = serializers.CharField(help_text="What kind of error it is, such as `required` or `unique`.")
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = FieldProblemSerializer(many=True, required=False)  # type: ignore[assignment]


def explain(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """DRF's exception handler; None for what nobody expected."""
    known = refusal(context["request"], error) if isinstance(error, NotYours) else _known(error)
    if isinstance(known, exceptions.NotAuthenticated):
        known = _throttled(context) or known
    if known is None:
        return None
    set_rollback()
    headers = {**getattr(known, "headers", {}), **_headers(known)}
    return Response(_body(known), status=known.status_code, headers=headers, content_type=PROBLEM_JSON)


def _throttled(context: Mapping[str, Any]) -> exceptions.Throttled | None:
    """DRF asks its throttles only about those who may call; strangers never come that far."""
    throttle = StrangerThrottle()
    if throttle.allow_request(context["request"], context["view"]):
        return None
    return exceptions.Throttled(throttle.wait(), f"Too many calls without a token. {NOBODY}")


def _known(error: Exception) -> exceptions.APIException | None:
    match error:
        case exceptions.NotAuthenticated():
            error.detail = exceptions.ErrorDetail(NOBODY, error.default_code)
            return error
        case exceptions.APIException():
            return error
        case Http404() | ObjectDoesNotExist():
            return exceptions.NotFound("There is nothing at this address: it may have been removed.")
        case PermissionDenied():
            return exceptions.PermissionDenied(str(error) or None)
        case ValidationError():
            return exceptions.ValidationError(said(error))
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
            logger.warning("two requests met: %s", error)
            met = "Somebody else took this name, or changed the same, in this moment: look, then repeat it."
            return Problem(met, status_code=409, code="met")
        case _ if is_outage(error):
            logger.warning("the database cannot be reached: %s", in_a_line(error))
            away = "The database cannot be reached, or is too busy."
            return Problem(away, status_code=503, code="unavailable", headers={"Retry-After": "2"})
    return None


def said(error: ValidationError) -> Any:
    """What Django's error says, by field."""
    told: dict[str, list[exceptions.ErrorDetail]] = defaultdict(list)
    for path, message, code in field_errors(error):
        told[dotted(path) or NON_FIELD_ERRORS].append(exceptions.ErrorDetail(message, code))
    return dict(told)


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
        "title": TITLES.get(code, "Something is wrong"),
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
