"""A request that is sent again with the same Idempotency-Key is answered again, not carried out again."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.http import HttpRequest
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from activities import clock

from .authentication import principal_of
from .errors import Problem
from .models import TAKEN_SECONDS, KeyedAnswer

LONGEST_KEY = 200
KEPT_HEADERS = ("Location", "ETag")


def key_of(request: Request | HttpRequest) -> str:
    """Empty: none was sent."""
    key = request.headers.get("Idempotency-Key", "").strip()
    if len(key) > LONGEST_KEY or not key.isprintable():
        raise ValidationError({"Idempotency-Key": f"At most {LONGEST_KEY} printable characters."})
    return key


def lasting_key(request: Request) -> str:
    """For verbs that remember keys of their own, longer than answers are kept; empty: none was sent."""
    key = key_of(request)
    named = f"{principal_of(request)}\n{request.path}\n{key}"
    return hashlib.sha256(named.encode()).hexdigest()[:40] if key else ""


def begin(request: Request, key: str) -> KeyedAnswer | Response:
    """A place for the answer; or the answer, if there is one already."""
    place = {"principal": principal_of(request), "route": request.path[:LONGEST_KEY], "key": key}
    digest, now = _digest(request.data), clock.now()
    try:
        with transaction.atomic():
            return KeyedAnswer.objects.create(**place, request_digest=digest, created_at=now)
    except IntegrityError:
        known = KeyedAnswer.objects.filter(**place).first()
    if known is None:
        raise _under_way()
    if known.request_digest != digest:
        told = "This Idempotency-Key was used with another body: choose a new key."
        raise Problem(told, status_code=409, code="key-reused")
    if known.status is not None:
        return _again(known)
    abandoned = KeyedAnswer.objects.filter(
        pk=known.pk, status=None, created_at__lt=now - timedelta(seconds=TAKEN_SECONDS)
    )
    if not abandoned.update(created_at=now):
        raise _under_way()
    return known


def keep(place: KeyedAnswer, response: Response) -> None:
    """Only what was done is remembered: what was refused may be tried again."""
    if not 200 <= response.status_code < 300:
        KeyedAnswer.objects.filter(pk=place.pk).delete()
        return
    headers = {name: response[name] for name in KEPT_HEADERS if response.has_header(name)}
    body = json.loads(response.rendered_content) if response.data is not None else None
    KeyedAnswer.objects.filter(pk=place.pk).update(status=response.status_code, headers=headers, body=body)


def _again(known: KeyedAnswer) -> Response:
    headers = {**known.headers, "Idempotent-Replayed": "true"}
    return Response(known.body, status=known.status, headers=headers)


def _under_way() -> Problem:
    told = "A request with this Idempotency-Key is under way: ask again in a moment."
    return Problem(told, status_code=409, code="under-way", headers={"Retry-After": "1"})


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
