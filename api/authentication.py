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
    """`Authorization: Bearer jim_…`"""

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
        """What makes an answer 401 instead of 403."""
        return self.keyword


def refuse(request: Request, now: datetime) -> NoReturn:
    """Wrong tokens are counted by address. Right ones pass all the same: others may share the address."""
    guess = Guess.at_token(request)
    if wait := FailedSignIn.objects.charge(guess, now=now):
        told = "Too many calls with unknown tokens came from this address: use one that is known."
        raise Throttled(wait.total_seconds(), told)
    FailedSignIn.objects.record(guess, now=now)
    raise AuthenticationFailed("This token is not known, has expired or was revoked: create another one.")


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API token, `jim_…`."}


def initiator_of(request: Request | HttpRequest) -> Initiator:
    """Who asks: a person, or a token in that person's name."""
    token = getattr(request, "auth", None)
    user = request.user
    assert user.is_authenticated
    if isinstance(token, ApiToken):
        return Initiator("token", str(token.pk), f"{user.get_username()} ({token.name})")
    return Initiator.user(user)


def principal_of(request: Request) -> str:
    token = request.auth
    return f"token:{token.pk}" if isinstance(token, ApiToken) else f"user:{request.user.pk}"
