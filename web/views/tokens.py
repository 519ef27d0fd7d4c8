"""Pages of API tokens: list, create and revoke."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.debug import sensitive_variables

from api.models import ApiToken
from api.operations import Revoke
from api.scopes import SCOPES
from database import clock
from operations.initiator import initiator_of
from web.keyset import newest_first
from web.operating import conduct
from web.page import form_page, page
from web.saving import save

SEE_ALL, REVOKE_ALL = "api.view_apitoken", "api.change_apitoken"
LIVES = {"30": "30 days", "90": "90 days", "365": "1 year", "": "Never"}
ABOUT = (
    "A token lets a program call the API on your behalf. The scopes of the token limit what the program can "
    "do. The program can never do more than you can."
)


class TokenForm(forms.Form):
    name = forms.CharField(
        max_length=100, help_text="What the token is used for, such as “nightly import on db-2”."
    )
    scopes = forms.MultipleChoiceField(
        choices=[
            (scope, format_html("<b>{}</b> <span>{}</span>", scope, words)) for scope, words in SCOPES.items()
        ],
        widget=forms.CheckboxSelectMultiple,
        initial=["view"],
        error_messages={"required": "Choose at least one scope."},
    )
    days = forms.ChoiceField(
        label="Expiration",
        choices=list(LIVES.items()),
        required=False,
        initial="90",
        widget=forms.RadioSelect,
    )


@page("")
def tokens(request: HttpRequest) -> HttpResponse:
    rows = ApiToken.objects.select_related("user")
    sees_all = request.user.has_perm(SEE_ALL)
    of_all = sees_all and request.GET.get("of") == "all"
    pages = newest_first(request, rows if of_all else rows.filter(user=request.user.pk))
    now = clock.now()
    context = {
        "title": "API tokens",
        "about": ABOUT,
        "pages": pages,
        "rows": [(token, token.state(now), _may_revoke(request, token)) for token in pages.rows],
        "sees_all": sees_all,
        "of_all": of_all,
    }
    return render(request, "web/tokens.html", context)


@form_page("")
@sensitive_variables()
def new(request: HttpRequest) -> HttpResponse:
    form = TokenForm(request.POST or None)
    made = save(form, lambda given: _issue(request, given))
    if made is None:
        context = {"title": "New API token", "about": ABOUT, "form": form, "list": "web:tokens"}
        return render(request, "web/form.html", context)
    token, text = made
    shown = render_to_string("web/_token.html", {"token": token, "text": text}, request)
    context = {"title": "New API token", "revealed": [{"reveal": shown}], "back": reverse("web:tokens")}
    return render(request, "web/secret.html", context)


@form_page("")
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    token = ApiToken.objects.select_related("user").filter(pk=pk).first()
    if token is None or not _may_revoke(request, token):
        raise Http404(f"Token {pk} does not exist, is already revoked, or belongs to another user.")
    return conduct(request, Revoke(), [token])


@sensitive_variables()
def _issue(request: HttpRequest, given: dict[str, Any]) -> tuple[ApiToken, str]:
    assert request.user.is_authenticated
    now = clock.now()
    return ApiToken.objects.issue(
        name=given["name"],
        scopes=given["scopes"],
        user=request.user,
        initiator=initiator_of(request),
        now=now,
        expires_at=now + timedelta(days=int(given["days"])) if given["days"] else None,
    )


def _may_revoke(request: HttpRequest, token: ApiToken) -> bool:
    is_own = token.user_id == request.user.pk
    return token.revoked_at is None and (is_own or request.user.has_perm(REVOKE_ALL))
