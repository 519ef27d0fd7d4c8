"""The page of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from database import clock
from database.batched import together
from execution.models import Limit, Worker, WorkerTask
from execution.queue.turns import MOST_COUNTED, STATES, depths, in_turn
from execution.queue.waits import Waits
from text.numbers import whole_number
from web.filters import SearchField
from web.keyset import address
from web.operating import register
from web.page import fragment, is_asked_by, page, version_of
from workflows.models import Run
from workflows.models.run import LARGE
from workflows.steps import HandlerStep

VIEW = "execution.view_workertask"
MOST_SHOWN = 50
MOST_NAMED = 200
REASONS_SECONDS = 15

register(WorkerTask, view_permission=VIEW)


class QueueFilters(forms.Form):
    state = forms.ChoiceField(
        required=False, choices=[("", "All"), *((each, each) for each in STATES)], widget=forms.HiddenInput
    )
    pool = SearchField(widget=forms.TextInput(attrs={"list": "pools", "size": 16}))


@page(VIEW)
def queue(request: HttpRequest) -> HttpResponse:
    """Show the queue. The reasons for waiting are refreshed after a change, and every few seconds."""
    queue_page = QueuePage.of(request)
    if not is_asked_by(request, "rows"):
        context = {"title": "Queue", **queue_page.context(request), "pools": _pools()}
        return render(request, "web/queue/list.html", context)
    if request.GET.get("version") == queue_page.version:
        return HttpResponse(status=204)
    return fragment(request, "web/queue/_rows.html", queue_page.context(request), version=queue_page.version)


@dataclass(frozen=True)
class QueuePage:
    """One page of tasks in the order of the queue, with the filters that select them."""

    form: QueueFilters
    wanted: dict[str, Any]
    skipped: int
    tasks: list[WorkerTask]
    now: datetime

    @classmethod
    def of(cls, request: HttpRequest) -> QueuePage:
        form = QueueFilters(request.GET)
        form.is_valid()
        wanted = {name: value for name, value in form.cleaned_data.items() if value}
        skipped = _skipped(request)
        ids = in_turn(wanted.get("state", ""), pool=wanted.get("pool", ""), count=skipped + MOST_SHOWN + 1)
        rows = WorkerTask.objects.select_related("execution", "worker").defer("execution__plan")
        found = rows.in_bulk(ids[skipped:])
        tasks = [found[pk] for pk in ids[skipped:] if pk in found]
        return cls(form, wanted, skipped, tasks, clock.now())

    def context(self, request: HttpRequest) -> dict[str, Any]:
        rows = self.tasks[:MOST_SHOWN]
        waits = Waits.of(rows, now=self.now)
        [counts], found, *answers = together(depths(), _runs(rows), *waits.questions)
        why, runs = waits.told(*answers), {run.key: run for run in found}
        further = self.skipped + MOST_SHOWN
        return {
            "form": self.form,
            "is_filtered": bool(self.wanted),
            "rows": [(task, _state(task), why[task.pk], runs.get(task.key)) for task in rows],
            "states": _states(request, self.wanted.get("state", ""), counts),
            "later": address(request, skip=further) if len(self.tasks) > MOST_SHOWN else "",
            "first": address(request, skip="") if self.skipped else "",
            "here": address(request),
            "version": self.version,
        }

    @property
    def version(self) -> str:
        told = [(task.pk, _state(task), task.priority, task.attempt) for task in self.tasks]
        age = int(self.now.timestamp() / REASONS_SECONDS)
        return version_of(age, told)


def _skipped(request: HttpRequest) -> int:
    """Return how many tasks at the front of the queue to skip, at most 1,000."""
    return min(whole_number(request.GET.get("skip", ""), digits=9) or 0, 1_000)


def _runs(tasks: Sequence[WorkerTask]) -> QuerySet[Run]:
    """Select the workflow runs that these tasks perform."""
    keys = [task.key for task in tasks if task.step.get("step_type") == HandlerStep.name]
    rows = Run.objects.filter(key__in=keys).select_related("handler", "workflow")
    return rows.defer(*LARGE, "handler__state")


def _state(task: WorkerTask) -> str:
    """Return the name of the tab on which the page lists this task."""
    is_delayed = task.is_delayed and task.status == WorkerTask.Status.QUEUED
    return "delayed" if is_delayed and not task.cancel_requested_at else task.state


def _states(request: HttpRequest, chosen: str, counts: Sequence[int]) -> list[tuple[str, str, str, bool]]:
    links = [
        (name, _count_text(count), address(request, state=name, skip=""), name == chosen)
        for name, count in zip(STATES, counts, strict=True)
    ]
    return [("all", "", address(request, state="", skip=""), not chosen), *links]


def _count_text(count: int) -> str:
    return f"{count:,}{'+' if count >= MOST_COUNTED else ''}"


def _pools() -> list[str]:
    """Return “default” and the names of pools that have a worker or a limit, to suggest in the filter."""
    served = Worker.objects.alive().values_list("pools", flat=True)[:MOST_NAMED]
    limited = Limit.objects.filter(key__startswith="pool:").values_list("key", flat=True)[:MOST_NAMED]
    names = {"default", *(name for pools in served for name in pools)}
    return sorted(names | {key.removeprefix("pool:") for key in limited})
