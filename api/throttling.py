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

# How many previews that look at all they may one caller can ask for in a minute. Others are not counted.
FULL_PREVIEWS = 10


class SharedThrottle(BaseThrottle):
    """Count calls by the minute, for all web processes together."""

    scope: ClassVar[str]
    now: datetime

    def subject(self, request: Request) -> str | None:
        """Name who is counted, or nothing for those whom another throttle counts."""
        raise NotImplementedError

    def allow_request(self, request: Request, view: Any) -> bool:
        self.now = clock.estimate()
        subject, most = self.subject(request), settings.CALLS_PER_MINUTE[self.scope]
        if subject is None:
            return True
        return meter.add(f"{self.scope}:{subject}", 1, most=most, now=self.now) <= most

    def wait(self) -> float:
        return seconds_left(self.now)


class StrangerThrottle(SharedThrottle):
    """Count calls without credentials by address."""

    scope = "stranger"

    def subject(self, request: Request) -> str:
        return address_of(request)


class PrincipalThrottle(SharedThrottle):
    """Count each token on its own: one busy integration does not lock out another of the same user."""

    scope = "principal"

    def subject(self, request: Request) -> str | None:
        return principal_of(request) if request.user.is_authenticated else None


class UserThrottle(SharedThrottle):
    """Count all tokens of a user together: more tokens are not more calls."""

    scope = "user"

    def subject(self, request: Request) -> str | None:
        return str(request.user.pk) if request.user.is_authenticated else None


@contextmanager
def preview_effort(request: Request) -> Iterator[Effort]:
    """Give an effort for one preview, and count what it used for its caller."""
    now, most = clock.estimate(), FULL_PREVIEWS * EFFORT
    subject = f"preview:{principal_of(request)}"
    if meter.used(subject, now) >= most:
        told = f"Previews of large specs take long: at most {FULL_PREVIEWS} a minute."
        raise Throttled(seconds_left(now), told)
    effort = Effort()
    try:
        yield effort
    finally:
        if effort.used:
            meter.add(subject, effort.used, most=most, now=clock.estimate())
