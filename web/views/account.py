"""Pages of the user's own account: sign-in, password and time zone."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters

from api.models import ApiToken
from database import clock
from schedules.spec.zones import time_zones
from web.page import chosen_zone, form_page, remember, zone_for
from web.signing_in import PasswordForm, SignInForm, limits_guesses


class Login(LoginView):
    """The sign-in page, which redirects users who are already signed in."""

    template_name = "web/login.html"
    authentication_form = SignInForm
    http_method_names = ("get", "head", "post")

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated:
            return redirect(self.get_success_url())
        return super().get(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        """Sign the user in, and save the browser's time zone unless the user has already chosen one."""
        answer = super().form_valid(form)
        zone = self.request.POST.get("time_zone", "")
        if chosen_zone(self.request) is None and zone in time_zones():
            remember(answer, zone)
        return answer


class TimeZoneForm(forms.Form):
    time_zone = forms.ChoiceField(
        choices=lambda: [(zone, zone) for zone in time_zones()],
        help_text="Times on pages and in filters are in this time zone, except the times at which a schedule "
        "runs: these are in the schedule's own time zone.",
        error_messages={"invalid_choice": "Choose a time zone from the list, such as Europe/London."},
    )


@form_page("")
def time_zone(request: HttpRequest) -> HttpResponse:
    asked = request.GET.get("next", "")
    back = asked if url_has_allowed_host_and_scheme(asked, allowed_hosts=None) else reverse("web:home")
    given = request.POST if request.method == "POST" else None
    form = TimeZoneForm(given, initial={"time_zone": zone_for(request)})
    if not form.is_valid():
        return render(request, "web/time_zone.html", {"title": "Your time zone", "form": form, "back": back})
    zone = form.cleaned_data["time_zone"]
    messages.success(request, f"This browser now shows times in {zone}.")
    answer = redirect(back)
    remember(answer, zone)
    return answer


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
    # All other browsers are signed out; this one stays signed in.
    update_session_auth_hash(request, form.user)
    messages.success(request, "Your password has been changed.")
    return redirect("web:home")
