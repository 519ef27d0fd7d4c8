"""Pause and resume everything at once."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from database import clock
from operations.initiator import Initiator
from schedules import permissions
from schedules.models import Schedule, ScheduleQuerySet
from schedules.spec.wording import counted

from .operations import NoteForm, ResumeForm
from .verbs import initiator_of


class PauseAll:
    name: ClassVar = "pause"
    label: ClassVar = "Pause all"
    form: ClassVar[type[forms.Form]] = NoteForm
    question: ClassVar = (
        "Automatic runs of every schedule that is not paused yet wait from now on; their times are still "
        "recorded. What is running goes on, and runs by hand stay possible. “Resume all” resumes those that "
        "were paused together, and leaves those alone that somebody had paused before. Pause all of them?"
    )

    def affected(self) -> ScheduleQuerySet:
        return Schedule.objects.filter(status=Schedule.Status.RUNNING)

    def perform(self, answers: dict[str, Any], by: Initiator, now: datetime) -> str:
        count = Schedule.objects.pause_all(initiator=by, now=now, note=answers["note"])
        return f"{_are(count)} paused."


class ResumeAll:
    name: ClassVar = "resume"
    label: ClassVar = "Resume all"
    form: ClassVar[type[forms.Form]] = ResumeForm
    question: ClassVar = (
        "The schedules that were paused together run again; those that somebody paused one by one stay "
        "paused. Resume them?"
    )

    def affected(self) -> ScheduleQuerySet:
        return Schedule.objects.paused_together()

    def perform(self, answers: dict[str, Any], by: Initiator, now: datetime) -> str:
        discard = answers["missed"] == "discard"
        count = Schedule.objects.resume_all(initiator=by, now=now, discard=discard)
        return f"{_are(count)} active again."


VERBS: dict[str, PauseAll | ResumeAll] = {verb.name: verb for verb in (PauseAll(), ResumeAll())}


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


def _are(count: int) -> str:
    return f"{counted(count, 'schedule')} {'is' if count == 1 else 'are'}"
