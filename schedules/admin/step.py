from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.forms import BaseInlineFormSet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from operations.admin_pages import unsaved_of
from schedules import permissions
from schedules.forms.steps import StepForm, StepFormSet
from schedules.forms.tasks import TEMPLATE, TaskForm
from schedules.models import MAX_STEPS, Schedule, Step, TaskTemplate

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

    StackedInline = admin.StackedInline[Step, Schedule]
else:
    StackedInline = admin.StackedInline


# The fields that say how a task runs, for steps and templates.
POLICIES: Any = (
    (
        "Timeout, retries and failures",
        {
            "fields": (
                "continue_on_failure",
                ("timeout_seconds", "on_crash"),
                "max_failed_percent",
                ("max_retries", "retry_seconds"),
                ("retry_factor", "retry_cap_seconds"),
                "retry_jitter",
                "retry_on",
            ),
            "classes": ("collapse",),
        },
    ),
    (
        "Pool, priority and resources",
        {"fields": (("pool", "priority"), "resources"), "classes": ("collapse",)},
    ),
)


class StepInline(StackedInline):
    model = Step
    form = StepForm
    formset = StepFormSet
    max_num = MAX_STEPS
    template = "admin/schedules/schedule/steps.html"
    fieldsets = (
        (None, {"fields": (("index", "name"), "runs", "run_if")}),
        *POLICIES,
    )
    viewed = (
        (None, {"fields": (("index", "name"), "step_type", "config", "run_if")}),
        ("Template", {"fields": ("from_template", "overridden")}),
        *POLICIES,
    )

    class Media:
        js = ("jim/admin_steps.js",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if self.has_change_permission(request, obj) else ("from_template", "overridden")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fieldsets if self.has_change_permission(request, obj) else self.viewed

    @admin.display(description="template")
    def from_template(self, step: Step) -> str:
        return str(step.overrides.get("template", ""))

    @admin.display(description="overrides")
    def overridden(self, step: Step) -> SafeString:
        """Return the values with which the step overrides its template, as HTML."""
        own = {name: value for name, value in step.overrides.items() if name != "template"}
        return format_html("<pre>{}</pre>", json.dumps(own, indent=2, ensure_ascii=False) if own else "")

    def get_formset(self, request: HttpRequest, obj: Any = None, **kwargs: Any) -> Any:
        if not self.has_change_permission(request, obj):
            plain = {"formset": BaseInlineFormSet, "form": forms.ModelForm}
            return super().get_formset(request, obj, **plain, **kwargs)
        formset: Any = super().get_formset(
            request, obj, absolute_max=self.max_num + 1, validate_max=True, **kwargs
        )
        formset.refused = unsaved_of(request).steps
        formset.tells_secrets = request.user.has_perm(permissions.DEFINE_CODE)
        return formset

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("schedules.view_schedule") or self.has_change_permission(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is None:
            return request.user.has_perm("schedules.add_schedule")
        return can_change(request, obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_change_permission(request, obj)


def settings_view(admin: ModelAdmin[Any], request: HttpRequest, form: type[TaskForm]) -> HttpResponse:
    """Return the settings fields of the step type or template that was just chosen in a form, as HTML."""
    if not (admin.has_add_permission(request) or admin.has_change_permission(request)):
        raise PermissionDenied
    prefix = request.POST.get("prefix") or None
    chosen = request.POST.get(f"{prefix}-runs", "")
    templates = TaskTemplate.objects.needed_by([{"template": chosen.removeprefix(TEMPLATE)}])
    filled_in = form(request.POST, prefix=prefix, templates=templates)
    filled_in.tells_secrets = request.user.has_perm(permissions.DEFINE_CODE)
    return TemplateResponse(request, "admin/schedules/_settings.html", {"form": filled_in})


def can_change(request: HttpRequest, schedule: Schedule | None) -> bool:
    is_open = schedule is None or schedule.status != Schedule.Status.CLOSED
    return is_open and request.user.has_perm("schedules.change_schedule")
