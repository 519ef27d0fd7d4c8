"""Pause and resume everything at once."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from database import clock
from operations.initiator import initiator_of
from schedules import permissions
from schedules.models import Schedule
from schedules.operations import VERBS, _are


def all_view(admin: ModelAdmin[Schedule], request: HttpRequest, name: str) -> HttpResponse:
    if not (request.user.has_perm(permissions.RUN) and admin.has_view_permission(request)):
        raise PermissionDenied
    verb, back = VERBS[name], reverse("admin:schedules_schedule_changelist")
    form = verb.form(request.POST if request.method == "POST" else None)
    if form.is_valid():
        said = verb.perform(form.cleaned_data, initiator_of(request), clock.now())
        admin.message_user(request, said, messages.SUCCESS)
        return HttpResponseRedirect(back)
    context = {
        **admin.admin_site.each_context(request),
        "title": verb.label,
        "opts": admin.opts,
        "operation": verb,
        "total": f"{_are(verb.affected().count())} concerned.",
        "form": form,
        "back": back,
    }
    return TemplateResponse(request, "admin/confirmation.html", context)
