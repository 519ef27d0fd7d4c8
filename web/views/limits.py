"""Pages of limits and pools."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from database import clock
from execution.limit_form import LimitForm
from execution.models import Limit, WorkerTask
from execution.queue.concurrency import SEPARATOR
from execution.queue.occupancy import Occupancy, Used
from operations.initiator import initiator_of
from schedules.revisions import records_of
from web import operating
from web.page import form_page, fragment, page, version_of
from web.saving import save

HOLDERS_SHOWN = 50
CHANGES_SHOWN = 10
NewLimit = modelform_factory(Limit, form=LimitForm, fields=("key", "size", "note"))
EditLimit = modelform_factory(Limit, form=LimitForm, fields=("size", "note"))

operating.register(Limit, view_permission="execution.view_limit")


@page("execution.view_limit")
def limits(request: HttpRequest) -> HttpResponse:
    return render(request, "web/limits.html", {"title": "Limits and pools", **_limits_context()})


@page("execution.view_limit")
def limits_now(request: HttpRequest) -> HttpResponse:
    now = _limits_context()
    return fragment(request, "web/_limits.html", now, version=now["version"])


@page("execution.view_limit")
def limit(request: HttpRequest, key: str) -> HttpResponse:
    found = get_object_or_404(Limit, pk=key)
    limits = Occupancy.at(clock.now()).limits
    context = {
        "title": found.key,
        "used": next((used for used in limits if used.limit == found), Used(found, 0, 0)),
        "holders": _holders(found) if request.user.has_perm("execution.view_workertask") else None,
        "changes": records_of(found).order_by("-pk")[:CHANGES_SHOWN],
    }
    return render(request, "web/limit.html", context)


@form_page("execution.add_limit")
def new(request: HttpRequest) -> HttpResponse:
    form = NewLimit(request.POST or None)
    by, now = initiator_of(request), clock.now()
    made = save(form, lambda given: Limit.objects.define(**given, initiator=by, now=now))
    if made is None:
        return _form(request, form, title="New limit")
    messages.success(request, f"Created the limit “{made}” with size {made.size}.")
    return redirect(made)


@form_page("execution.change_limit")
def edit(request: HttpRequest, key: str) -> HttpResponse:
    found = get_object_or_404(Limit, pk=key)
    form = EditLimit(request.POST or None, instance=get_object_or_404(Limit, pk=key))
    if save(form, lambda given: _edit(request, found, given)) is None:
        return _form(request, form, title=f"Edit {found}", limit=found)
    messages.success(request, f"Saved “{found}”.")
    return redirect(found)


def _edit(request: HttpRequest, found: Limit, given: dict[str, Any]) -> Limit:
    found.edit(changes=given, initiator=initiator_of(request), now=clock.now())
    return found


def _form(request: HttpRequest, form: Any, *, title: str, limit: Limit | None = None) -> HttpResponse:
    about = (
        "A limit sets how many tasks with the same key can run at once, on all workers together. "
        "Changing a limit does not stop tasks that are already running."
    )
    context = {"title": title, "about": about, "form": form, "target": limit, "list": "web:limits"}
    return render(request, "web/form.html", context)


def _limits_context() -> dict[str, Any]:
    seen = Occupancy.at(clock.now())
    told = [(used.limit.definition(), used.limit.key, used.running, used.waiting) for used in seen.limits]
    return {"rows": seen.limits, "pools": seen.pools, "version": version_of(told, seen.pools)}


def _holders(found: Limit) -> list[WorkerTask]:
    """Return the oldest running tasks that count towards the limit."""
    running = WorkerTask.objects.processing().filter(worker__isnull=False, limit_keys__contains=found.key)
    tasks = running.select_related("worker", "execution").defer("execution__plan").order_by("claimed_at")
    return [t for t in tasks if found.key in t.limit_keys.split(SEPARATOR)][:HOLDERS_SHOWN]
