from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.views.decorators.debug import sensitive_post_parameters, sensitive_variables

from database import clock
from operations.admin_pages import VerbsAdmin
from operations.form_errors import Unsaved
from operations.initiator import initiator_of
from schedules.models import Refused, Secret
from schedules.operations import DeleteSecret
from schedules.secret_form import SecretForm
from schedules.vault import VaultError
from text.words import moment


@admin.register(Secret)
class SecretAdmin(VerbsAdmin[Secret]):
    """The admin pages of secrets. Values are never shown."""

    form = SecretForm
    change_form_template = "admin/schedules/secret/change_form.html"
    list_display = ("name", "changed", "about")
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name", "changed")

    def get_fields(self, request: HttpRequest, obj: Secret | None = None) -> Any:
        if obj is None:
            return ("name", "description", "value")
        return ("description", "value") if self.has_change_permission(request, obj) else ("description",)

    @method_decorator([sensitive_post_parameters(), sensitive_variables()])
    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return super().changeform_view(request, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: Secret, form: Any, change: bool) -> None:
        given = {"value": form.cleaned_data["value"], "description": form.cleaned_data["description"]}
        by, now = initiator_of(request), clock.now()
        try:
            if change:
                obj.edit(**given, initiator=by, now=now)
            else:
                obj.pk = Secret.objects.define(obj.name, **given, initiator=by, now=now).pk
        except (Refused, VaultError) as refused:
            raise Unsaved({}, refusal=str(refused)) from refused
        except IntegrityError as error:
            raise Unsaved(
                {"name": ["This name was just taken by another secret. Choose another name."]}
            ) from error

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        return HttpResponseRedirect(self.operation_url(DeleteSecret.name, [object_id]))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if secret := context.get("original"):
            context["trouble"] = _trouble(secret)
            context["used_by"] = (
                secret.used_by() if request.user.has_perm("schedules.view_schedule") else None
            )
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="description")
    def about(self, secret: Secret) -> str:
        return Truncator(secret.description).chars(80)

    @admin.display(description="value set", ordering="changed_at")
    def changed(self, secret: Secret) -> SafeString:
        return moment(secret.changed_at, now=clock.now())


def _trouble(secret: Secret) -> str:
    """Return why this host cannot decrypt the secret, or an empty string if it can."""
    try:
        Secret.objects.reveal([secret.name])
    except VaultError as error:
        return str(error)
    return ""
