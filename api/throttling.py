from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

from .authentication import principal_of


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
