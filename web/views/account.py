from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.debug import sensitive_post_parameters

from activities import clock
from api.models import ApiToken
from web.page import form_page
from web.signing_in import PasswordForm, SignInForm, limits_guesses


class Login(LoginView):
    """Whoever is signed in already goes on to where they wanted to go."""

    template_name = "web/login.html"
    authentication_form = SignInForm
    http_method_names = ("get", "head", "post")

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            return redirect(self.get_success_url())
        return super().get(request, *args, **kwargs)


@sensitive_post_parameters()
@limits_guesses
@form_page("")
def password(request: HttpRequest) -> HttpResponse:
    assert isinstance(request.user, User)
    form = PasswordForm(request)
    living = ApiToken.objects.living(clock.now()).filter(user=request.user.pk)
    if not form.is_valid():
        context = {"title": "Change your password", "form": form, "tokens": living.count()}
        return render(request, "web/password.html", context)
    form.save()
    # All other browsers are signed out; this one goes on.
    update_session_auth_hash(request, form.user)
    messages.success(request, "Your password is changed.")
    return redirect("web:home")
