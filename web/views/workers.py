"""Pages of workers: the list, and one worker with its tasks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from database import clock
from execution.models import Worker, WorkerTask
from web.page import fragment, page, version_of

ALIVE_SHOWN = 500
ENDED_SHOWN = 20
TASKS_SHOWN = 200


@page("execution.view_worker")
def workers(request: HttpRequest) -> HttpResponse:
    return render(request, "web/workers.html", {"title": "Workers", **_workers_context()})


@page("execution.view_worker")
def workers_now(request: HttpRequest) -> HttpResponse:
    now = _workers_context()
    return fragment(request, "web/_workers.html", now, version=now["version"])


@page("execution.view_worker")
def worker(request: HttpRequest, pk: UUID) -> HttpResponse:
    found = get_object_or_404(_workers_with_load(), pk=pk)
    return render(request, "web/worker.html", {"title": str(found), **_worker_context(request, found)})


@page("execution.view_worker")
def worker_now(request: HttpRequest, pk: UUID) -> HttpResponse:
    found = get_object_or_404(_workers_with_load(), pk=pk)
    now = _worker_context(request, found)
    is_final = found.status != Worker.Status.ALIVE
    return fragment(request, "web/_worker.html", now, version=now["version"], is_final=is_final)


def _workers_context() -> dict[str, Any]:
    """Return the template context with the lists of workers.

    A worker whose lease has expired counts as silent until a scheduler marks it as dead.
    """
    now = clock.now()
    alive = list(_workers_with_load().alive().order_by("host", "started_at")[:ALIVE_SHOWN])
    ended = list(Worker.objects.exclude(status=Worker.Status.ALIVE).order_by("-ended_at")[:ENDED_SHOWN])
    for each in alive:
        each.is_silent = not each.holds_lease(now)
    beating = [each for each in alive if not each.is_silent]
    seen = [(each.pk, each.busy, each.beat_at, each.is_silent) for each in alive]
    version = version_of(seen, [each.pk for each in ended])
    return {
        "alive": alive,
        "ended": ended,
        "beating": len(beating),
        "busy": sum(each.busy for each in beating),
        "seats": sum(each.seats for each in beating),
        "version": version,
    }


def _worker_context(request: HttpRequest, found: Any) -> dict[str, Any]:
    tasks: list[WorkerTask] = []
    if request.user.has_perm("execution.view_workertask"):
        own = WorkerTask.objects.processing().filter(worker=found).order_by("claimed_at")
        tasks = list(own.select_related("execution", "activity").defer("execution__plan")[:TASKS_SHOWN])
    told = [(task.pk, task.activity.progress_done, task.activity.message) for task in tasks]
    version = version_of(found.status, found.beat_at, found.stale_refused, told)
    return {"worker": found, "tasks": tasks, "version": version}


def _workers_with_load() -> Any:
    processing = Count("tasks", filter=Q(tasks__status=WorkerTask.Status.PROCESSING))
    return Worker.objects.annotate(busy=processing)
