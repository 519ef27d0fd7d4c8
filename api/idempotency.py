"""A request that is sent again with the same Idempotency-Key is answered again, not carried out again."""

from __future__ import annotations

import hashlib
import json
import logging
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.http import HttpRequest
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from activities import clock
from activities.statements import AWAY

from .authentication import principal_of
from .errors import Problem
from .models import ANSWERS_ARE_KEPT, TAKEN_SECONDS, KeyedAnswer

LONGEST_KEY = 200
KEPT_HEADERS = ("Location", "ETag")
logger = logging.getLogger(__name__)


def key_of(request: Request | HttpRequest) -> str:
    """Empty: none was sent."""
    key = request.headers.get("Idempotency-Key", "").strip()
    if len(key) > LONGEST_KEY or not key.isprintable():
        raise ValidationError({"Idempotency-Key": f"At most {LONGEST_KEY} printable characters."})
    return key


def begin(request: Request, key: str) -> KeyedAnswer | Response:
    """A place for the answer; or the answer, if there is one already."""
    place = {"principal": principal_of(request), "route": _route(request), "key": key}
    digest, now = _digest(request.data), clock.now()
    KeyedAnswer.objects.filter(**place, created_at__lt=now - ANSWERS_ARE_KEPT).delete()
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
    return _again(known) if known.status is not None else _taken_over(known, now)


def end(place: KeyedAnswer, response: Response | None) -> None:
    """Only what was done is remembered: what was refused may be tried again.

    After an error nobody knows what was done, so that the place stays, for whoever tries again.
    """
    mine = KeyedAnswer.objects.filter(pk=place.pk, status=None, created_at=place.created_at)
    try:
        if response is None or response.status_code >= 500:
            mine.update(created_at=place.created_at - timedelta(seconds=TAKEN_SECONDS + 1))
        elif response.status_code >= 400:
            mine.delete()
        else:
            mine.update(**_kept(response))
    except AWAY as error:
        # The answer is true all the same; who asks again is told that it is under way, for a minute.
        logger.warning("what was answered to the key %s cannot be kept: %s", place.key, error)


def _kept(response: Response) -> dict[str, Any]:
    headers = {name: response[name] for name in KEPT_HEADERS if response.has_header(name)}
    body = json.loads(response.rendered_content) if response.data is not None else None
    return {"status": response.status_code, "headers": headers, "body": body}


def _taken_over(known: KeyedAnswer, now: datetime) -> KeyedAnswer:
    """From somebody who has not answered for so long that he will not."""
    abandoned = Q(created_at__lt=now - timedelta(seconds=TAKEN_SECONDS))
    if not KeyedAnswer.objects.filter(abandoned, pk=known.pk, status=None).update(created_at=now):
        raise _under_way()
    known.created_at = now
    return known


def _again(known: KeyedAnswer) -> Response:
    headers = {**known.headers, "Idempotent-Replayed": "true"}
    return Response(known.body, status=known.status, headers=headers)


def _under_way() -> Problem:
    told = "A request with this Idempotency-Key is under way: ask again in a moment."
    return Problem(told, status_code=409, code="under-way", headers={"Retry-After": "1"})


def _route(request: Request) -> str:
    """Long ones are told apart by their digest."""
    path = f"{request.method} {request.path}"
    return path if len(path) <= LONGEST_KEY else hashlib.sha256(path.encode()).hexdigest()


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
