from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.cache import cache
from rest_framework.exceptions import Throttled
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from schedules.spec.timeline import EFFORT, Effort

from .authentication import principal_of

# How many previews that look at all they may one caller can ask for in a minute. Others are not counted.
FULL_PREVIEWS = 10


class StrangerThrottle(SimpleRateThrottle):
    """Calls without credentials, by address. They cost no question, so each process counts its own."""

    scope = "stranger"

    def get_cache_key(self, request: Request, view: Any) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}


class PrincipalThrottle(SimpleRateThrottle):
    """Each token counts on its own: one busy integration does not lock out another of the same user."""

    scope = "principal"

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        if not request.user.is_authenticated:
            return None
        return self.cache_format % {"scope": self.scope, "ident": principal_of(request)}


class UserThrottle(SimpleRateThrottle):
    """All tokens of a user together: more tokens are not more calls."""

    scope = "user"

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        if not request.user.is_authenticated:
            return None
        return self.cache_format % {"scope": self.scope, "ident": request.user.pk}


@contextmanager
def preview_effort(request: Request) -> Iterator[Effort]:
    """Give an effort for one preview, and count what it used for its caller."""
    minute, second = divmod(int(time.time()), 60)
    key = f"preview:{principal_of(request)}:{minute}"
    if (cache.get_or_set(key, 0, 120) or 0) >= FULL_PREVIEWS * EFFORT:
        raise Throttled(60 - second, f"Previews of large specs take long: at most {FULL_PREVIEWS} a minute.")
    effort = Effort()
    try:
        yield effort
    finally:
        if effort.used:
            cache.incr(key, effort.used)
