from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib import messages
from django.forms import modelform_factory
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from activities import clock
from execution.concurrency import SEPARATOR
from execution.limit_admin import Delete, LimitForm
from execution.models import Limit, WorkerTask
from execution.models.limited import MOST_COUNTED, usage
from execution.pools import MOST_COUNTED as MOST_READY
from execution.pools import pools
from schedules.admin.verbs import initiator_of
from schedules.revisions import records_of
from web import operating
from web.page import form_page, fragment, page, version_of
from web.saving import save

MOST_SHOWN = 500
HOLDERS_SHOWN = 50
CHANGES_SHOWN = 10
NewLimit = modelform_factory(Limit, form=LimitForm, fields=("key", "size", "note"))
EditLimit = modelform_factory(Limit, form=LimitForm, fields=("size", "note"))

operating.register(Limit, view_permission="execution.view_limit", operations=lambda: [Delete()])


class Used(NamedTuple):
    limit: Limit
    running: int
    waiting: int

    @property
    def more(self) -> str:
        return "+" if self.waiting >= MOST_COUNTED else ""

    @property
    def is_full(self) -> bool:
        return self.running >= self.limit.size


@page("execution.view_limit")
def limits(request: HttpRequest) -> HttpResponse:
    return render(request, "web/limits.html", {"title": "Limits and pools", **_now()})


@page("execution.view_limit")
def limits_now(request: HttpRequest) -> HttpResponse:
    now = _now()
    return fragment(request, "web/_limits.html", now, version=now["version"])


@page("execution.view_limit")
def limit(request: HttpRequest, key: str) -> HttpResponse:
    found = get_object_or_404(Limit, pk=key)
    context = {
        "title": found.key,
        "used": _used(found, usage()),
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
    messages.success(request, f"“{made}” is limited to {made.size}.")
    return redirect(made)


@form_page("execution.change_limit")
def edit(request: HttpRequest, key: str) -> HttpResponse:
    found = get_object_or_404(Limit, pk=key)
    form = EditLimit(request.POST or None, instance=get_object_or_404(Limit, pk=key))
    if save(form, lambda given: _edit(request, found, given)) is None:
        return _form(request, form, title=f"Edit {found}", limit=found)
    messages.success(request, f"“{found}” is saved.")
    return redirect(found)


def _edit(request: HttpRequest, found: Limit, given: dict[str, Any]) -> Limit:
    """Whoever looked at it and saved it as it was has not edited it."""
    if changes := {name: value for name, value in given.items() if value != getattr(found, name)}:
        found.edit(changes=changes, initiator=initiator_of(request), now=clock.now())
    return found


def _form(request: HttpRequest, form: Any, *, title: str, limit: Limit | None = None) -> HttpResponse:
    about = "How many tasks with this key run at once, whoever runs them. What runs already goes on."
    context = {"title": title, "about": about, "form": form, "target": limit, "list": "web:limits"}
    return render(request, "web/form.html", context)


def _now() -> dict[str, Any]:
    used = usage()
    rows = [_used(each, used) for each in Limit.objects.order_by("key")[:MOST_SHOWN]]
    found = pools()
    seen = [(row.limit.key, row.limit.size, row.limit.note, row.running, row.waiting) for row in rows]
    version = version_of(seen, [(pool, pool.reservation and pool.reservation.state) for pool in found])
    return {"rows": rows, "pools": found, "most_ready": MOST_READY, "version": version}


def _used(found: Limit, used: dict[str, tuple[int, int]]) -> Used:
    return Used(found, *used.get(found.key, (0, 0)))


def _holders(found: Limit) -> list[WorkerTask]:
    """Those that run with its key: no more than there are seats."""
    running = WorkerTask.objects.processing().filter(worker__isnull=False, limit_keys__contains=found.key)
    tasks = running.select_related("worker", "execution").defer("execution__plan").order_by("claimed_at")
    return [t for t in tasks if found.key in t.limit_keys.split(SEPARATOR)][:HOLDERS_SHOWN]
