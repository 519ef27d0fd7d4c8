"""The OpenAPI description of every action: its errors, headers and parameters."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from .errors import PROBLEM_JSON, TITLES, ProblemSerializer

IF_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    required=True,
    description="The ETag of the version that you want to change, or `*` to change any version.",
)
IF_MATCH_OPTIONAL = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag of the version that you expect. If the object has changed since then, the request "
    "is refused (412).",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag of an earlier response. If nothing has changed since then, the response is 304 "
    "without a body.",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "maxLength": 200},
    OpenApiParameter.HEADER,
    description="A unique key of your choice. If you repeat the request with the same key within 24 hours, "
    "the request is not carried out again, and you receive the first response.",
)
ALWAYS = (400, 401, 403, 406, 429, 503)
ETAG = {
    "ETag": {
        "schema": {"type": "string"},
        "description": "The version of the object. Send it in If-Match when you change the object.",
    }
}
LOCATION = {
    "Location": {
        "schema": {"type": "string", "format": "uri"},
        "description": "The URL of the new object, or the URL at which you can follow the progress.",
    }
}
RETRY_AFTER = {
    "Retry-After": {
        "schema": {"type": "string"},
        "description": "How many seconds to wait before you repeat the request.",
    }
}
HEADERS = {
    "200": ETAG,
    "201": ETAG | LOCATION,
    "202": LOCATION,
    "304": ETAG,
    "412": ETAG,
    "429": RETRY_AFTER,
    "503": RETRY_AFTER,
}


def retrieved(serializer: Any) -> dict[Any, Any]:
    """Return the documented responses of an action that reads one object."""
    return {200: serializer, 304: OpenApiResponse(description="Not modified")}


def created(serializer: Any) -> dict[Any, Any]:
    """Return the documented responses of an action that creates an object."""
    return {201: serializer, **problems(409, 415)}


def updated(serializer: Any) -> dict[Any, Any]:
    """Return the documented responses of an action that edits an object."""
    return {200: serializer, **problems(404, 409, 412, 415, 428)}


def deleted() -> dict[Any, Any]:
    """Return the documented responses of an action that deletes an object."""
    return {204: None, **problems(404, 409, 412, 428)}


def accepted(serializer: Any) -> dict[Any, Any]:
    """Return the documented responses of an action that is accepted (202) and may finish later."""
    return {202: serializer, **problems(404, 409, 412, 415)}


def performed(serializer: Any) -> dict[Any, Any]:
    """Return the documented responses of an action that has finished when it responds (200)."""
    return {200: serializer, **problems(404, 409, 412, 415)}


def problems(*codes: int) -> dict[Any, Any]:
    return {(code, PROBLEM_JSON): OpenApiResponse(ProblemSerializer, TITLES[code]) for code in codes}


class Schema(AutoSchema):
    """The OpenAPI description of an action: its docstring, and the errors that all actions can return."""

    def get_operation_id(self) -> str:
        """Return an id such as schedules_list, schedules_occurrences_list or schedules_run."""
        words = [part.replace("-", "_") for part in self.path.split("/") if part and "{" not in part][2:]
        action = getattr(self.view, "action", None) or self.method.lower()
        return "_".join(words if words and words[-1] == action else [*words, action])

    def _resolve_path_parameters(self, variables: Any) -> Any:
        """Describe numeric ids as integers instead of strings with a pattern."""
        parameters = super()._resolve_path_parameters(variables)  # type: ignore[no-untyped-call]
        for parameter in parameters:
            if parameter["schema"].get("pattern", "").startswith("^[0-9]"):
                parameter["schema"] = {"type": "integer", "minimum": 0, "maximum": 10**9}
        return parameters

    def get_summary(self) -> str | None:
        summary = next(iter(self._docstring()), None)
        return summary.removesuffix(".") if summary else None

    def get_description(self) -> str:  # type: ignore[override]
        return "\n".join((self._docstring() or [""])[1:]).strip()

    def _docstring(self) -> list[str]:
        """Return the lines of the action's docstring or, for the action `list`, of the class's docstring."""
        name = getattr(self.view, "action", None) or self.method.lower()
        docstring = inspect.getdoc(type(self.view) if name == "list" else getattr(self.view, name, None))
        return (docstring or "").splitlines()

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        for code in (*ALWAYS, *((404,) if "{" in self.path else ())):
            if str(code) not in bodies:
                response = OpenApiResponse(ProblemSerializer, TITLES[code])
                bodies[str(code)] = self._get_response_for_code(  # type: ignore[no-untyped-call]
                    response, str(code), media_types=[PROBLEM_JSON], direction=direction
                )
        for code, body in bodies.items():
            if headers := self._headers(code):
                body["headers"] = {**headers, **body.get("headers", {})}
        return bodies

    def _headers(self, code: str) -> dict[str, Any]:
        return {} if code == "200" and self._is_list_view() else HEADERS.get(code, {})
