"""What the OpenAPI description says about every action: its errors, its headers, its examples."""

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
    description="The ETag of the version that is changed; `*` for whichever there is.",
)
IF_MATCH_IF_SAID = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag of the version that this is about. Without it: whichever there is.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The ETag of what is known already: nothing (304) is sent if it is still the same.",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "maxLength": 200},
    OpenApiParameter.HEADER,
    description="A key of your choice: within 24 hours, the same request with it is carried out once.",
)
ALWAYS = (400, 401, 403, 406, 429, 503)
ETAG = {"ETag": {"schema": {"type": "string"}, "description": "The version, for If-Match."}}
LOCATION = {"Location": {"schema": {"type": "string", "format": "uri"}, "description": "Where it is."}}
RETRY_AFTER = {"Retry-After": {"schema": {"type": "string"}, "description": "Seconds to wait."}}
HEADERS = {
    "200": ETAG,
    "201": ETAG | LOCATION,
    "202": LOCATION,
    "304": ETAG,
    "412": ETAG,
    "429": RETRY_AFTER,
    "503": RETRY_AFTER,
}


def reads(serializer: Any) -> dict[Any, Any]:
    return {200: serializer, 304: OpenApiResponse(description="It is still the same.")}


def makes(serializer: Any) -> dict[Any, Any]:
    return {201: serializer, **problems(409, 415)}


def changes(serializer: Any) -> dict[Any, Any]:
    return {200: serializer, **problems(404, 409, 412, 415, 428)}


def removes() -> dict[Any, Any]:
    return {204: None, **problems(404, 409, 412, 428)}


def accepts(serializer: Any) -> dict[Any, Any]:
    return {202: serializer, **problems(404, 409, 412, 415)}


def acts(serializer: Any) -> dict[Any, Any]:
    """What is done as soon as it is answered."""
    return {200: serializer, **problems(404, 409, 412, 415)}


def problems(*codes: int) -> dict[Any, Any]:
    return {(code, PROBLEM_JSON): OpenApiResponse(ProblemSerializer, TITLES[code]) for code in codes}


class Schema(AutoSchema):
    """Every action may fail in the ways that belong to all of them, and is told by its docstring."""

    def get_operation_id(self) -> str:
        """schedules_list, schedules_occurrences_list, schedules_run."""
        words = [part.replace("-", "_") for part in self.path.split("/") if part and "{" not in part][2:]
        action = getattr(self.view, "action", None) or self.method.lower()
        return "_".join(words if words and words[-1] == action else [*words, action])

    def _resolve_path_parameters(self, variables: Any) -> Any:
        """Ids are numbers also where an address takes nothing else."""
        parameters = super()._resolve_path_parameters(variables)  # type: ignore[no-untyped-call]
        for parameter in parameters:
            if parameter["schema"].get("pattern", "").startswith("^[0-9]"):
                parameter["schema"] = {"type": "integer", "minimum": 0, "maximum": 10**9}
        return parameters

    def get_summary(self) -> str | None:
        return next(iter(self._said()), None)

    def get_description(self) -> str:  # type: ignore[override]
        return "\n".join((self._said() or [""])[1:]).strip()

    def _said(self) -> list[str]:
        """A list says what its resource is."""
        name = getattr(self.view, "action", None) or self.method.lower()
        said = inspect.getdoc(type(self.view) if name == "list" else getattr(self.view, name, None))
        return (said or "").splitlines()

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
