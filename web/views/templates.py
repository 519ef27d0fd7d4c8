from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Lower
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from activities import clock
from activities.words import NOTHING
from schedules import permissions, registry
from schedules.admin.step import POLICIES
from schedules.admin.task_template import USERS_SHOWN, TaskTemplateAdmin, TemplateForm, uses
from schedules.admin.verbs import initiator_of
from schedules.models import Conflict, Step, TaskTemplate
from schedules.revisions import records_of
from web import operating
from web.page import form_page, page
from web.saving import Overtaken, overtaken, save

MOST_SHOWN = 500
CHANGES_SHOWN = 10
NewTemplate = TemplateForm
EditTemplate = modelform_factory(TaskTemplate, form=TemplateForm, fields=TaskTemplate.EDITABLE)
ABOUT = (
    "What steps that are alike have in common, in one place. A step names a template and says only what is "
    "different; what you change here changes all of them."
)
FIRST = ("name", "description", "step_type", "config")
# What is told of how it runs, in the order in which people ask.
SHOWN = (
    *("timeout_seconds", "continue_on_failure", "on_crash", "max_retries", "retry_seconds", "retry_factor"),
    *("retry_cap_seconds", "retry_jitter", "retry_on", "pool", "priority", "resources"),
)

operating.register(
    TaskTemplate,
    view_permission="schedules.view_tasktemplate",
    operations=lambda: TaskTemplateAdmin.operations,
)


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
    used = uses(found) if request.user.has_perm("schedules.view_schedule") else []
    context = {
        "title": found.name,
        "template": found,
        "kind": kind.title if kind else "not installed",
        "config": json.dumps(found.config, indent=2, ensure_ascii=False),
        "policies": [_told(found, name) for name in SHOWN],
        "uses": used[:USERS_SHOWN],
        "has_more_uses": len(used) > USERS_SHOWN,
        "changes": records_of(found).order_by("-pk")[:CHANGES_SHOWN],
    }
    return render(request, "web/template.html", context)


@form_page("schedules.add_tasktemplate")
def new(request: HttpRequest) -> HttpResponse:
    form = NewTemplate(request.POST or None)
    by = _by(request)
    made = save(form, lambda given: TaskTemplate.objects.define(name=given["name"], **_fields(given), **by))
    if made is None:
        return _form(request, form, title="New template")
    messages.success(request, f"“{made}” is there: name it in a step.")
    return redirect(made)


@form_page("schedules.change_tasktemplate")
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    found = get_object_or_404(TaskTemplate, pk=pk)
    form = EditTemplate(request.POST or None, instance=get_object_or_404(TaskTemplate, pk=pk))
    conflict = None
    try:
        saved = save(form, lambda given: _edit(request, found, given))
    except Conflict as other:
        saved, conflict = None, overtaken(form, found, other)
    if saved is None:
        return _form(request, form, title=f"Edit {found}", template=found, conflict=conflict)
    messages.success(request, f"“{found}” is saved.")
    return redirect(found)


def _edit(request: HttpRequest, found: TaskTemplate, given: dict[str, Any]) -> TaskTemplate:
    """Whoever looked at it and saved it as it was has not edited it."""
    checked = TaskTemplate(name=found.name, **_fields(given))
    checked.clean()
    changes = {name: value for name, value in checked.definition().items() if value != getattr(found, name)}
    if changes:
        found.edit(token=given["version"], changes=changes, **_by(request))
    return found


def _form(
    request: HttpRequest,
    form: Any,
    *,
    title: str,
    template: TaskTemplate | None = None,
    conflict: Overtaken | None = None,
) -> HttpResponse:
    form.fields["config"].help_text = "JSON; the settings of each type are listed under “Settings by type”."
    context = {
        "title": title,
        "about": ABOUT,
        "form": form,
        "first": [form[name] for name in FIRST if name in form.fields],
        "groups": [(str(legend), _bound(form, options["fields"])) for legend, options in POLICIES],
        "target": template,
        "list": "web:templates",
        "conflict": conflict,
        "step_types": list(registry.step_types.values()),
        "used_by": template.used_by()[:USERS_SHOWN] if template else [],
    }
    return render(request, "web/template_form.html", context)


def _found(request: HttpRequest) -> QuerySet[TaskTemplate]:
    # Counted by index for each template: a join would go through the steps of all schedules.
    steps = Step.objects.filter(template=OuterRef("pk")).exclude(schedule__status="closed")
    users = (
        steps.order_by().values("template").annotate(count=Count("schedule", distinct=True)).values("count")
    )
    rows = TaskTemplate.objects.annotate(users=Coalesce(Subquery(users), 0))
    rows = rows.order_by("status", Lower("name"))
    if text := request.GET.get("q", "").strip():
        rows = rows.filter(Q(name__icontains=text) | Q(description__icontains=text))
    if status := request.GET.get("status", ""):
        rows = rows.filter(status=status)
    if kind := request.GET.get("type", ""):
        rows = rows.filter(step_type=kind)
    return rows


def _told(found: TaskTemplate, name: str) -> tuple[str, str]:
    value = getattr(found, name)
    field: Any = TaskTemplate._meta.get_field(name)
    if isinstance(value, bool):
        value = "yes" if value else "no"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(field.verbose_name), NOTHING if value in (None, "") else str(value)


def _bound(form: Any, names: Any) -> list[Any]:
    flat = [name for each in names for name in (each if isinstance(each, tuple) else (each,))]
    return [form[name] for name in flat]


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in TaskTemplate.EDITABLE}


def _by(request: HttpRequest) -> dict[str, Any]:
    may = request.user.has_perm(permissions.DEFINE_CODE)
    return {"initiator": initiator_of(request), "now": clock.now(), "may_define_code": may}
