"""Idempotency keys: a repeated request gets the stored response instead of being carried out again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest
from django.utils.crypto import salted_hmac
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from database import clock
from database.statements import insert_each

from .authentication import principal_of
from .errors import Problem
from .models import ANSWERS_ARE_KEPT, KeyedAnswer

LONGEST_KEY = 200
KEPT_HEADERS = ("Location", "ETag")
FIELDS = ("principal", "route", "key", "request_digest", "created_at", "headers")


def key_of(request: Request | HttpRequest) -> str:
    """Return the Idempotency-Key of a request, or an empty string."""
    key = request.headers.get("Idempotency-Key", "").strip()
    if len(key) > LONGEST_KEY or not key.isprintable():
        detail = f"The Idempotency-Key must consist of at most {LONGEST_KEY} printable characters."
        raise ValidationError({"Idempotency-Key": detail})
    return key


def once(request: Request, key: str, act: Callable[[], Response]) -> Response:
    """Carry out a request (`act`), or return the stored response if the request was carried out before.

    The key, the changes and the response are written in one transaction, so a crash or an error leaves
    nothing behind.
    """
    place, digest = _place(request, key), _digest(request)
    with transaction.atomic():
        taken = _take(place, digest)
        if taken is None:
            return _known(place, digest)
        response = act()
        KeyedAnswer.objects.filter(pk=taken).update(**_kept(response))
    return response


def previous_response(request: Request, key: str) -> Response | None:
    """Return the stored response if the same request was carried out before, else None."""
    place = _place(request, key)
    kept = KeyedAnswer.objects.filter(**place, created_at__gte=clock.now() - ANSWERS_ARE_KEPT)
    return _known(place, _digest(request)) if kept.exists() else None


def _place(request: Request, key: str) -> dict[str, str]:
    return {"principal": principal_of(request), "route": _route(request), "key": key}


def _take(place: dict[str, str], digest: str) -> int | None:
    """Store the key and return the id of its row; return None if the key is already stored or in use."""
    now = clock.now()
    taken = _insert(place, digest, now)
    if taken is not None:
        return taken
    old = KeyedAnswer.objects.filter(**place, created_at__lt=now - ANSWERS_ARE_KEPT)
    return _insert(place, digest, now) if old.delete()[0] else None


def _insert(place: dict[str, str], digest: str, now: datetime) -> int | None:
    where, params = "", []
    if connection.vendor == "postgresql":
        # With the unique index alone, the second of two requests would wait for the commit of the first.
        where, params = "pg_try_advisory_xact_lock(%s)", [_lock_of(place)]
    row = (*place.values(), digest, now, {})
    rows = insert_each(
        KeyedAnswer, FIELDS, [row], where=where, params=params, unless_known=True, returning="id"
    )
    return rows[0][0] if rows else None


def _known(place: dict[str, str], digest: str) -> Response:
    known = KeyedAnswer.objects.filter(**place).first()
    if known is None or known.status is None:
        raise _under_way()
    if known.request_digest != digest:
        detail = (
            "This Idempotency-Key was already used for a request with a different body or different "
            "parameters. Use a new key."
        )
        raise Problem(detail, status_code=409, code="key-reused")
    return _again(known)


def _kept(response: Response) -> dict[str, Any]:
    headers = {name: response[name] for name in KEPT_HEADERS if response.has_header(name)}
    body = json.loads(JSONRenderer().render(response.data)) if response.data is not None else None
    return {"status": response.status_code, "headers": headers, "body": body}


def _again(known: KeyedAnswer) -> Response:
    headers = {**known.headers, "Idempotent-Replayed": "true"}
    return Response(known.body, status=known.status, headers=headers)


def _under_way() -> Problem:
    detail = "Another request with this Idempotency-Key is in progress. Try again in a moment."
    return Problem(detail, status_code=409, code="under-way", headers={"Retry-After": "1"})


def _route(request: Request) -> str:
    """Return the method and path, or their digest if they are too long to store."""
    path = f"{request.method} {request.path}"
    return path if len(path) <= LONGEST_KEY else hashlib.sha256(path.encode()).hexdigest()


def _digest(request: Request) -> str:
    """Return a keyed digest of the request, from which secrets in the request cannot be guessed."""
    asked = json.dumps([request.data, dict(request.query_params)], sort_keys=True)
    return salted_hmac("api.idempotency", asked, algorithm="sha256").hexdigest()


def _lock_of(place: dict[str, str]) -> int:
    digest = hashlib.sha256("\n".join(place.values()).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
