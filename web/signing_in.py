"""Forms that take a password, with a limit on wrong guesses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse

from api.guessing import BROWSER_IS_KNOWN, Guess
from api.models import FailedSignIn
from database import clock
from text.words import span


class TooMany(ValidationError):
    def __init__(self, wait: timedelta) -> None:
        self.seconds = max(1, round(wait.total_seconds()))
        told = span(timedelta(seconds=self.seconds))
        super().__init__(f"Too many wrong passwords. Try again in {told}.", code="too_many")


def checked(request: HttpRequest, username: str, check: Callable[[], Any]) -> Any:
    """Call `check`, which raises ValidationError if the password is wrong, and return its result.

    After too many wrong passwords, raise TooMany without calling `check`.
    """
    guess, now = Guess.at_password(request, username), clock.now()
    if wait := FailedSignIn.objects.charge(guess, now=now):
        request.too_many = TooMany(wait)  # type: ignore[attr-defined]
        raise request.too_many  # type: ignore[attr-defined]
    try:
        answer = check()
    except ValidationError:
        FailedSignIn.objects.record(guess, username, now=now)
        raise
    FailedSignIn.objects.refund(guess)
    request.known_browser = guess.known_browser()  # type: ignore[attr-defined]
    return answer


class SignInForm(AuthenticationForm):
    def clean(self) -> Any:
        username, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not (username and password and self.request):
            return super().clean()
        return checked(self.request, username, super().clean)


class AdminSignInForm(SignInForm, AdminAuthenticationForm):
    """The sign-in form of the admin, for staff only."""


class PasswordForm(PasswordChangeForm):
    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        super().__init__(request.user, request.POST or None)  # type: ignore[arg-type]

    def clean_old_password(self) -> Any:
        return checked(self.request, self.user.get_username(), super().clean_old_password)


def limits_guesses(view: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a view: return status 429 after too many guesses, and mark known browsers with a cookie."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = view(request, *args, **kwargs)
        if too_many := getattr(request, "too_many", None):
            response.status_code = 429
            response.headers["Retry-After"] = str(too_many.seconds)
        if known := getattr(request, "known_browser", ""):
            _remember(response, known)
        return response

    return answer


def _remember(response: HttpResponse, known: str) -> None:
    response.set_cookie(
        settings.BROWSER_COOKIE_NAME,
        known,
        max_age=BROWSER_IS_KNOWN,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
