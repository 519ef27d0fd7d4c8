"""Rate limits of the API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from database import clock
from schedules.spec.timeline import EFFORT, Effort

from .authentication import principal_of
from .guessing import address_of
from .rates import meter, seconds_left

# How many previews of the highest cost a caller can request per minute.
FULL_PREVIEWS = 10


class SharedThrottle(BaseThrottle):
    """A throttle that counts the requests per minute of all web processes together."""

    scope: ClassVar[str]
    now: datetime

    def subject(self, request: Request) -> str | None:
        """Return the key under which to count the request, or None if this throttle does not apply."""
        raise NotImplementedError

    def allow_request(self, request: Request, view: Any) -> bool:
        self.now = clock.estimate()
        subject, most = self.subject(request), settings.CALLS_PER_MINUTE[self.scope]
        if subject is None:
            return True
        return meter.add(f"{self.scope}:{subject}", 1, most=most, now=self.now) <= most

    def wait(self) -> float:
        return seconds_left(self.now)


class AnonymousThrottle(SharedThrottle):
    """A throttle for requests without credentials, counted by IP address."""

    scope = "stranger"

    def subject(self, request: Request) -> str:
        return address_of(request)


class PrincipalThrottle(SharedThrottle):
    """A throttle for each token, so that one busy integration does not block a user's other integrations."""

    scope = "principal"

    def subject(self, request: Request) -> str | None:
        return principal_of(request) if request.user.is_authenticated else None


class UserThrottle(SharedThrottle):
    """A throttle for all tokens of a user together, so that more tokens do not allow more requests."""

    scope = "user"

    def subject(self, request: Request) -> str | None:
        return str(request.user.pk) if request.user.is_authenticated else None


@contextmanager
def preview_effort(request: Request) -> Iterator[Effort]:
    """Yield the effort allowed for one preview. Afterwards, add the used effort to the caller's usage.

    Raise Throttled if the caller has used up the effort allowed per minute.
    """
    now, most = clock.estimate(), FULL_PREVIEWS * EFFORT
    subject = f"preview:{principal_of(request)}"
    if meter.used(subject, now) >= most:
        detail = (
            f"You can request at most {FULL_PREVIEWS} previews of large specs per minute. "
            "Try again in a minute."
        )
        raise Throttled(seconds_left(now), detail)
    effort = Effort()
    try:
        yield effort
    finally:
        if effort.used:
            meter.add(subject, effort.used, most=most, now=clock.estimate())
