"""Whoever changes something says which version: ETag and If-Match."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from rest_framework.request import Request

from .errors import Problem


def digest_of(definition: Any) -> str:
    """The version of something that has no token of its own."""
    text = json.dumps(definition, sort_keys=True, cls=DjangoJSONEncoder)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def etag(version: object) -> str:
    return f'"{version}"'


def check_match(request: Request, version: object) -> None:
    """For changes: the version is a must, and must be the current one. `*` is any."""
    asked = request.headers.get("If-Match")
    if asked is None:
        told = f"Send the header If-Match: {etag(version)}, or the ETag that you have read."
        raise Problem(told, status_code=428, code="precondition-required")
    _compare(asked, version)


def check_match_if_said(request: Request, version: object) -> None:
    """For actions, which may leave it open."""
    if (asked := request.headers.get("If-Match")) is not None:
        _compare(asked, version)


def _compare(asked: str, version: object) -> None:
    wanted = [text.strip().removeprefix("W/") for text in asked.split(",")]
    if "*" not in wanted and etag(version) not in wanted:
        raise Problem(
            "Somebody else changed it meanwhile. Load it again, then repeat your change.",
            status_code=412,
            code="changed",
            headers={"ETag": etag(version)},
        )
