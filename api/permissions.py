"""Permission checks: what the user may do, within the scopes of the token."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth import get_user, load_backend
from django.http import HttpRequest
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from database import clock
from schedules.permissions import DEFINE_CODE, NotYours

from .models import ApiToken


def can(request: Request, permission: str) -> bool:
    """Return whether the user and, if one was sent, the token have a permission."""
    token = request.auth
    within = not isinstance(token, ApiToken) or token.allows(permission)
    return within and request.user.has_perm(permission)


def can_still(request: Request, permission: str) -> bool:
    """Read the permissions from the database again, and return whether the caller still has this permission.

    Use this for responses that take a long time to send.
    """
    token = request.auth
    if not isinstance(token, ApiToken):
        return bool(_signed_in(request).has_perm(permission))
    is_living = ApiToken.objects.living(clock.now()).filter(pk=token.pk).exists()
    user = load_backend(settings.AUTHENTICATION_BACKENDS[0]).get_user(token.user_id) if is_living else None
    return user is not None and token.allows(permission) and user.has_perm(permission)


def _signed_in(request: Request) -> Any:
    """Return the session's user, or an anonymous user if the session ended or the password was changed."""
    again = HttpRequest()
    again.session = type(request.session)(request.session.session_key)
    return get_user(again)


class Allowed(BasePermission):
    """A check that the caller has the permission that the action needs. The resource lists it in `needs`."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user.is_authenticated:
            return False
        if request.method == "OPTIONS" or view.action is None:
            return True  # The resource does not support this method; DRF responds with 405 next.
        needed = view.needs[view.action]
        if can(request, needed):
            return True
        self.message = _refusal(request, needed)
        return False


def check(request: Request, permission: str) -> None:
    """Raise PermissionDenied if the caller lacks a permission. Use this for permissions not in `needs`."""
    if not can(request, permission):
        raise PermissionDenied(_refusal(request, permission))


def _refusal(request: Request, permission: str) -> str:
    return f"This request needs the permission “{permission}”, which {_lacking(request, permission)}."


def _lacking(request: Request, permission: str) -> str:
    if isinstance(request.auth, ApiToken) and request.user.has_perm(permission):
        return f"the scopes of this token ({', '.join(request.auth.scopes)}) do not include"
    return "you do not have"


def refusal(request: Request, error: NotYours) -> PermissionDenied:
    """Return an error that names the missing permission and whether the token or its user lacks it."""
    what = "that run code or use a secret" if error.permission == DEFINE_CODE else "of this type"
    lacking = _lacking(request, error.permission)
    return PermissionDenied(
        f"Steps {what} need the permission “{error.permission}”, which {lacking}. Affected steps: "
        f"{error.named}. Steps that use a template do not need this permission unless they override the "
        "template's settings or pool."
    )
