"""What the OpenAPI description says about every action: its errors, its headers, its examples."""

from __future__ import annotations

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
    description="The ETag of the version that is changed.",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="A key of your choice: within 24 hours, the same request with it is carried out once.",
)
ALWAYS = (400, 401, 403, 406, 429, 503)


def makes(serializer: Any) -> dict[Any, Any]:
    return {201: serializer, **problems(409, 415)}


def changes(serializer: Any) -> dict[Any, Any]:
    return {200: serializer, **problems(404, 409, 412, 415, 428)}


def removes() -> dict[Any, Any]:
    return {204: None, **problems(404, 409, 412, 428)}


def accepts(serializer: Any) -> dict[Any, Any]:
    return {202: serializer, **problems(404, 409, 412, 415)}


def problems(*codes: int) -> dict[Any, Any]:
    return {(code, PROBLEM_JSON): OpenApiResponse(ProblemSerializer, TITLES[code]) for code in codes}


class Schema(AutoSchema):
    """Every action may fail in the ways that belong to all of them."""

    def _get_response_bodies(self, direction: Literal["request", "response"] = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        for code in (*ALWAYS, *((404,) if "{" in self.path else ())):
            if str(code) not in bodies:
                response = OpenApiResponse(ProblemSerializer, TITLES[code])
                bodies[str(code)] = self._get_response_for_code(  # type: ignore[no-untyped-call]
                    response, str(code), media_types=[PROBLEM_JSON], direction=direction
                )
        return bodies
