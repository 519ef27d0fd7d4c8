from __future__ import annotations

import json
from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from database import clock
from operations.admin_pages import InWords, VerbsAdmin
from operations.form_errors import Unsaved
from operations.initiator import initiator_of
from schedules import permissions
from schedules.forms.tasks import TemplateForm
from schedules.inquiries import USERS_SHOWN, uses
from schedules.models import Conflict, Refused, TaskTemplate
from schedules.spec.wording import counted
from text.words import badge

from .step import POLICIES, settings_view


@admin.register(TaskTemplate)
class TaskTemplateAdmin(VerbsAdmin[TaskTemplate]):
    """The admin pages of task templates."""

    form = TemplateForm
    change_form_template = "admin/schedules/tasktemplate/change_form.html"
    list_display = ("name", "state", "step_type", "users", "about")
    list_filter = (("status", InWords), "step_type")
    search_fields = ("name", "description")
    ordering = ("name",)
    sortable_by = ("name", "step_type")

    class Media:
        js = ("jim/admin_steps.js",)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(partial(settings_view, self))
        name = "schedules_tasktemplate_step_settings"
        return [path("step-settings/", view, {"form": TemplateForm}, name=name), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[TaskTemplate]:
        is_open = ~Q(steps__schedule__status="closed")
        users = Count("steps__schedule", filter=is_open, distinct=True)
        return super().get_queryset(request).annotate(users=users)

    def has_change_permission(self, request: HttpRequest, obj: TaskTemplate | None = None) -> bool:
        return (obj is None or not obj.is_archived) and super().has_change_permission(request, obj)

    def get_form(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        form = super().get_form(request, *args, **kwargs)
        form.tells_secrets = request.user.has_perm(permissions.DEFINE_CODE)
        return form

    def get_fieldsets(self, request: HttpRequest, obj: TaskTemplate | None = None) -> Any:
        name = ("name",) if obj is None else ()
        if obj is None or self.has_change_permission(request, obj):
            return ((None, {"fields": (*name, "description", "runs", "version")}), *POLICIES)
        return ((None, {"fields": ("name", "description", "step_type", "settings")}), *POLICIES)

    def get_readonly_fields(self, request: HttpRequest, obj: TaskTemplate | None = None) -> Any:
        return () if obj is None or self.has_change_permission(request, obj) else ("settings",)

    def save_model(self, request: HttpRequest, obj: TaskTemplate, form: Any, change: bool) -> None:
        given = form.definition
        by: dict[str, Any] = {
            "initiator": initiator_of(request),
            "now": clock.now(),
            "may": request.user.has_perm,
        }
        try:
            if change:
                # Load the stored template, because the form has already changed `obj`.
                stored = TaskTemplate.objects.get(pk=obj.pk)
                stored.edit(token=form.cleaned_data["version"], changes=given, **by)
            else:
                obj.pk = TaskTemplate.objects.define(name=obj.name, **given, **by).pk
        except (Refused, Conflict) as refused:
            raise Unsaved({}, refusal=str(refused)) from refused
        except ValidationError as error:
            raise Unsaved(error.message_dict) from error

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if original := context.get("original"):
            template = TaskTemplate.objects.get(pk=original.pk)  # a form may have changed the instance
            context["stored"] = template
            can_see = request.user.has_perm("schedules.view_schedule")
            context["uses"] = uses(template) if can_see else None
            context["uses_shown"] = USERS_SHOWN
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="state")
    def state(self, template: TaskTemplate) -> SafeString:
        return badge(template.status)

    @admin.display(description="used by")
    def users(self, template: Any) -> str:
        return counted(template.users, "schedule") if template.users else "no schedule"

    @admin.display(description="description")
    def about(self, template: TaskTemplate) -> str:
        return Truncator(template.description).chars(80)

    @admin.display(description="config")
    def settings(self, template: TaskTemplate) -> SafeString:
        return format_html("<pre>{}</pre>", json.dumps(template.config, indent=2, ensure_ascii=False))
