"""Versions of objects in the headers ETag, If-Match and If-None-Match.

An ETag, such as "7.5d41402abc4b2a76", has two parts: the version of the definition, which If-Match checks,
and a digest of the whole response including state, which If-None-Match checks.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from rest_framework.request import Request

from .errors import Problem


def digest_of(definition: Any) -> str:
    """Return a digest. The digest of a definition is the version of an object without a version number."""
    text = json.dumps(definition, sort_keys=True, cls=DjangoJSONEncoder)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def etag(version: object, body: Any = None) -> str:
    return f'"{version}"' if body is None else f'"{version}.{digest_of(body)}"'


def is_unmodified(request: Request, tag: str) -> bool:
    """Return whether the client already has the response with this ETag."""
    asked = request.headers.get("If-None-Match")
    return asked is not None and bool({"*", tag} & set(_tags(asked)))


def check_match(request: Request, version: object) -> None:
    """Raise an error unless If-Match names the current version or `*`."""
    if request.headers.get("If-Match") is None:
        detail = (
            "This request needs an If-Match header with the ETag of the version that you read. "
            f"The current version is {etag(version)}."
        )
        raise Problem(detail, status_code=428, code="precondition-required")
    check_match_if_given(request, version)


def check_match_if_given(request: Request, version: object) -> bool:
    """Raise an error if If-Match names an outdated version. Return whether the header was sent."""
    asked = request.headers.get("If-Match")
    if asked is None:
        return False
    if not {"*", str(version)} & {tag.strip('"').partition(".")[0] for tag in _tags(asked)}:
        raise Problem(
            "The object has changed since you read it. Reload the object, then repeat your change.",
            status_code=412,
            code="changed",
            headers={"ETag": etag(version)},
        )
    return True


def _tags(asked: str) -> list[str]:
    return [text.strip().removeprefix("W/") for text in asked.split(",")]
