"""Authentication by API token, and the identity of the caller."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from django.http import HttpRequest
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, Throttled
from rest_framework.request import Request

from database import clock
from operations.initiator import Initiator

from .guessing import Guess
from .models import ApiToken, FailedSignIn


class TokenAuthentication(BaseAuthentication):
    """Authentication with an API token in the `Authorization: Bearer jim_…` header."""

    keyword = "Bearer"

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        kind, _, text = get_authorization_header(request).decode("latin-1").strip().partition(" ")
        if kind.lower() != self.keyword.lower():
            return None
        now = clock.now()
        token = ApiToken.objects.named_by(text.strip(), now=now)
        if token is None:
            refuse(request, now)
        token.note_use(now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Return the WWW-Authenticate header. Without this header, DRF would respond with 403, not 401."""
        return self.keyword


def refuse(request: Request, now: datetime) -> NoReturn:
    """Count an invalid token for the caller's IP address and refuse the request.

    Valid tokens are accepted even from a locked address, because several callers can share an address.
    """
    guess = Guess.at_token(request)
    if wait := FailedSignIn.objects.charge(guess, now=now):
        detail = "Too many requests with invalid API tokens from this IP address. Use a valid token."
        raise Throttled(wait.total_seconds(), detail)
    FailedSignIn.objects.record(guess, now=now)
    raise AuthenticationFailed("The API token is invalid, expired or revoked. Create a new token.")


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The description of token authentication in the OpenAPI schema."""

    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API token, `jim_…`."}


def initiator_of(request: Request | HttpRequest) -> Initiator:
    """Return who sent a request: a user, or one of the user's API tokens."""
    token = getattr(request, "auth", None)
    user = request.user
    assert user.is_authenticated
    if isinstance(token, ApiToken):
        return Initiator("token", str(token.pk), f"{user.get_username()} ({token.name})")
    return Initiator.user(user)


def principal_of(request: Request) -> str:
    """Return the id of the caller, a token or a user, for rate limits and idempotency keys."""
    token = request.auth
    return f"token:{token.pk}" if isinstance(token, ApiToken) else f"user:{request.user.pk}"
