from __future__ import annotations

import json

from django.contrib import messages
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Lower
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse

from database import clock
from operations.initiator import initiator_of
from schedules import permissions, registry
from schedules.forms.tasks import TemplateForm
from schedules.inquiries import USERS_SHOWN, uses
from schedules.models import Step, TaskTemplate
from schedules.revisions import records_of
from schedules.spec.wording import duration_words
from text.clean import search_text
from text.words import NOTHING
from web import operating
from web.editing.reading import Card
from web.editing.shown import warnings_about
from web.editing.template import TemplatePage, label_of
from web.page import form_page, is_htmx, page

MOST_SHOWN = 500
CHANGES_SHOWN = 10
ABOUT = (
    "A template contains settings that several steps share. A step that uses a template sets only the values "
    "that differ. A change to the template applies to all steps that use it."
)
# The policies that the page of a template lists, in this order.
SHOWN = (
    *("timeout_seconds", "continue_on_failure", "max_failed_percent", "on_crash", "max_retries"),
    *("retry_seconds", "retry_factor"),
    *("retry_cap_seconds", "retry_jitter", "retry_on", "pool", "priority", "resources"),
)

operating.register(TaskTemplate, view_permission="schedules.view_tasktemplate")


@page("schedules.view_tasktemplate")
def templates(request: HttpRequest) -> HttpResponse:
    context = {
        "title": "Templates",
        "about": ABOUT,
        "rows": _found(request)[:MOST_SHOWN],
        "chosen": {name: request.GET.get(name, "") for name in ("q", "status", "type")},
        "statuses": TaskTemplate.Status.values,
        "types": registry.choices(),
    }
    return render(request, "web/templates.html", context)


@page("schedules.view_tasktemplate")
def template(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(TaskTemplate, pk=pk)
    kind = registry.step_types.get(found.step_type)
    form = TemplateForm(instance=found)
    used = uses(found) if request.user.has_perm("schedules.view_schedule") else []
    context = {
        "title": found.name,
        "template": found,
        "kind": kind.title if kind else "not installed",
        "config": json.dumps(found.config, indent=2, ensure_ascii=False),
        "policies": [_policy(form, name) for name in SHOWN],
        "uses": used[:USERS_SHOWN],
        "has_more_uses": len(used) > USERS_SHOWN,
        "changes": records_of(found).order_by("-pk")[:CHANGES_SHOWN],
    }
    return render(request, "web/template.html", context)


@form_page("schedules.add_tasktemplate")
def new(request: HttpRequest) -> HttpResponse:
    return _form(request, None)


@form_page("schedules.change_tasktemplate")
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    return _form(request, get_object_or_404(TaskTemplate, pk=pk))


def _form(request: HttpRequest, found: TaskTemplate | None) -> HttpResponse:
    """Handle the form. Every button sends the whole form; only “Save” stores anything."""
    if request.method != "POST":
        return _show(request, TemplatePage(None, template=found, is_checked=False))
    is_save = request.POST.get("do", "save") == "save"
    is_checked = is_save or bool(request.POST.get("checked"))
    may_define_code = request.user.has_perm(permissions.DEFINE_CODE)
    shown = TemplatePage(request.POST, template=found, is_checked=is_checked, tells_secrets=may_define_code)
    if not is_save:
        return _show(request, shown)
    saved = shown.save(initiator=initiator_of(request), now=clock.now(), may=request.user.has_perm)
    if saved is None:
        return _show(request, shown)
    messages.success(request, f"Saved “{saved}”." if found else f"Created “{saved}”.")
    for warning in warnings_about(saved).values() if may_define_code else ():
        messages.warning(request, warning)
    return redirect(saved)


def _show(request: HttpRequest, shown: TemplatePage) -> HttpResponse:
    found = shown.template
    can_see_users = request.user.has_perm("schedules.view_schedule")
    address = reverse("web:template-edit", args=[found.pk]) if found else reverse("web:template-new")
    context = {
        "title": f"Edit {found}" if found else "New template",
        "about": ABOUT,
        "shown": shown,
        "form": shown.form,
        "card": Card(shown.form, is_checked=shown.is_checked),
        "target": found,
        "list": "web:templates",
        "address": address,
        "conflict": shown.conflict,
        "mistakes": shown.mistakes,
        "may_define_secrets": request.user.is_staff and request.user.has_perm("schedules.add_secret"),
        "is_quiet": is_htmx(request),
        "used_by": found.used_by()[:USERS_SHOWN] if found and can_see_users else [],
    }
    template = "web/_template_form.html" if is_htmx(request) else "web/template_form.html"
    return render(request, template, context)


def _found(request: HttpRequest) -> QuerySet[TaskTemplate]:
    # Count through an index for each template; a join would read the steps of all schedules.
    steps = Step.objects.filter(template=OuterRef("pk")).exclude(schedule__status="closed")
    users = (
        steps.order_by().values("template").annotate(count=Count("schedule", distinct=True)).values("count")
    )
    rows = TaskTemplate.objects.annotate(users=Coalesce(Subquery(users), 0))
    rows = rows.order_by("status", Lower("name"))
    if text := search_text(request.GET.get("q", "")):
        rows = rows.filter(Q(name__icontains=text) | Q(description__icontains=text))
    if status := search_text(request.GET.get("status", "")):
        rows = rows.filter(status=status)
    if kind := search_text(request.GET.get("type", "")):
        rows = rows.filter(step_type=kind)
    return rows


def _policy(form: TemplateForm, name: str) -> tuple[str, str]:
    """Return the label of a policy and the value of the policy in words."""
    found, label = form.instance, label_of(name)
    if name == "on_crash":
        return label, found.get_on_crash_display()
    if name == "continue_on_failure":
        return label, "yes" if found.continue_on_failure else "no"
    if name.endswith("_seconds") and (seconds := getattr(found, name)):
        return label, duration_words(seconds)
    text = form[name].value()
    return label, NOTHING if text in (None, "") else str(text).replace("\n", ", ")
