"""Whoever changes something says which version: ETag and If-Match.

A tag is the version of the definition, which If-Match is about, and a digest of all that was shown, state
included, which If-None-Match is about: "7.5d41402abc4b2a76".
"""

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


def etag(version: object, shown: Any = None) -> str:
    return f'"{version}"' if shown is None else f'"{version}.{digest_of(shown)}"'


def is_known(request: Request, tag: str) -> bool:
    """Whether whoever asks has it already, exactly so."""
    asked = request.headers.get("If-None-Match")
    return asked is not None and bool({"*", tag} & set(_tags(asked)))


def check_match(request: Request, version: object) -> None:
    """For changes: the version is a must, and must be the current one. `*` is any."""
    if request.headers.get("If-Match") is None:
        told = f"Send the header If-Match: {etag(version)}, or the ETag that you have read."
        raise Problem(told, status_code=428, code="precondition-required")
    check_match_if_said(request, version)


def check_match_if_said(request: Request, version: object) -> bool:
    """For actions, which may leave it open; whether it was said."""
    asked = request.headers.get("If-Match")
    if asked is None:
        return False
    if not {"*", str(version)} & {tag.strip('"').partition(".")[0] for tag in _tags(asked)}:
        raise Problem(
            "Somebody else changed it meanwhile. Load it again, then repeat your change.",
            status_code=412,
            code="changed",
            headers={"ETag": etag(version)},
        )
    return True


def _tags(asked: str) -> list[str]:
    return [text.strip().removeprefix("W/") for text in asked.split(",")]
