"""The admin page of API tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from database import clock
from operations.admin_pages import OperationsAdmin, RecordAdmin
from text.words import badge, moment

from .models import ApiToken


@admin.register(ApiToken)
class ApiTokenAdmin(RecordAdmin[ApiToken], OperationsAdmin[ApiToken]):
    """The list of API tokens. The tokens themselves cannot be shown, because only digests are stored."""

    list_display = ("__str__", "state", "user", "reach", "created", "expires", "last_used")
    list_filter = (("user", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("user",)
    search_fields = ("name", "prefix", "user__username")
    ordering = ("-created_at",)
    fields = ("name", "prefix", "state", "user", "reach", "created", "expires", "last_used", "revoked")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiToken]:
        return super().get_queryset(request).select_related("user")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ChangeList

    def state(self, token: ApiToken) -> SafeString:
        return badge(token.state(clock.now()))

    @admin.display(description="scopes")
    def reach(self, token: ApiToken) -> str:
        return ", ".join(token.scopes)

    def created(self, token: ApiToken) -> SafeString:
        return _moment(token.created_at)

    def expires(self, token: ApiToken) -> SafeString:
        return _moment(token.expires_at)

    @admin.display(description="last used")
    def last_used(self, token: ApiToken) -> SafeString:
        return _moment(token.last_used_at)

    def revoked(self, token: ApiToken) -> SafeString:
        return _moment(token.revoked_at)


def _moment(at: datetime | None) -> SafeString:
    return moment(at, now=clock.now())
