"""Pages of the runs of a workflow's handlers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from activities.models import Activity
from database import clock
from database.batched import together
from web.keyset import OLDER, Pages, address, look_among, newest_first
from web.operating import register
from web.page import fragment, is_asked_by, page, version_of
from workflows import operations, words
from workflows.failures import PHASES, Phase, Status
from workflows.models import Event, Handler, Run, Workflow
from workflows.overview import chain_of, runs_of

from .workflows import took

VIEW = "workflows.view_run"
REACH = 10_000
MOST_EVENTS = 50
MOST_ATTEMPTS = 50

register(Run, view_permission=VIEW)


class RunFilters(forms.Form):
    handler = forms.ChoiceField(required=False)
    status = forms.ChoiceField(
        label="State",
        required=False,
        choices=[("", "Any"), *((each.value, each.replace(":", ": ")) for each in Status)],
    )

    def __init__(self, given: Any, handlers: Sequence[Handler]) -> None:
        super().__init__(given)
        names = [(handler.name, str(handler)) for handler in handlers]
        self.fields["handler"].choices = [("", "Any"), *names]  # type: ignore[attr-defined]


@page(VIEW)
def runs(request: HttpRequest, slug: str) -> HttpResponse:
    workflow, handlers = _workflow(slug)
    form = RunFilters(request.GET, handlers)
    form.is_valid()
    wanted = {name: value for name, value in form.cleaned_data.items() if value}
    pages = _find_runs(request, workflow, handlers, wanted)
    version = version_of([(run.pk, run.status, run.phase, run.settled_at) for run in pages.rows])
    if is_asked_by(request, "rows") and request.GET.get("version") == version:
        return HttpResponse(status=204)
    by_pk = {handler.pk: handler for handler in handlers}
    context = {
        "title": f"Runs of {workflow}",
        "workflow": workflow,
        "form": form,
        "is_filtered": bool(wanted),
        "pages": pages,
        "rows": [(run, by_pk[run.handler_id], took(run)) for run in pages.rows],
        "is_live": OLDER not in request.GET,
        "here": address(request),
        "version": version,
    }
    if is_asked_by(request, "rows"):
        return fragment(request, "web/workflows/_runs.html", context, version=version)
    return render(request, "web/workflows/runs.html", context)


def _workflow(slug: str) -> tuple[Workflow, list[Handler]]:
    rows, handlers = together(
        Workflow.objects.filter(slug=slug), Handler.objects.filter(workflow__slug=slug).defer("state")
    )
    if not rows:
        raise Http404(f"Workflow “{slug}” does not exist.")
    return rows[0], handlers


def _find_runs(
    request: HttpRequest, workflow: Workflow, handlers: Sequence[Handler], wanted: dict[str, Any]
) -> Pages[Run]:
    """Find a page of runs.

    Without filters, the runs are found through an index. With filters, the search goes back from the newest.
    """
    rows = runs_of(workflow.pk)
    if not wanted:
        return newest_first(request, rows, within="workflow_id")
    condition = Q(status=wanted["status"]) if "status" in wanted else Q()
    if "handler" in wanted:
        condition &= Q(handler__in=[each.pk for each in handlers if each.name == wanted["handler"]])
    return look_among(request, rows, condition, within="workflow_id", by="created_at", reach=REACH)


@page(VIEW)
def run(request: HttpRequest, pk: int) -> HttpResponse:
    row = _run(pk)
    context = {
        "title": f"Run {row.pk} of {row.workflow}",
        **_live(row),
        "activity": row.activity(),
        "reserved": _reserved(row),
        "published": list(_events().filter(created_by=row).order_by("pk")[: MOST_EVENTS + 1]),
        "tries": _tries(row),
        "records": _records(row),
    }
    return render(request, "web/workflows/run.html", context)


@page(VIEW)
def run_now(request: HttpRequest, pk: int) -> HttpResponse:
    row = _run(pk)
    context = _live(row)
    return fragment(
        request,
        "web/workflows/_run.html",
        context,
        version=context["version"],
        is_final=row.settled_at is not None,
    )


def _run(pk: int) -> Run:
    row = Run.objects.select_related("workflow", "handler").filter(pk=pk).first()
    if row is None:
        raise Http404(f"Run {pk} does not exist.")
    return row


def _live(row: Run) -> dict[str, Any]:
    chain = chain_of(row.pk, most=MOST_ATTEMPTS)
    told = [(each.pk, each.status) for each in chain]
    first = operations.first_operation(row)
    return {
        "run": row,
        "workflow": row.workflow,
        "chain": chain,
        "track": track(row),
        "first": first.name if first else "",
        "issue": words.issue(row.workflow, row, clock.now()) if row.settled_at is None else "",
        "is_long": len(row.error) > words.MOST_SENTENCE or "\n" in row.error,
        "is_final": row.settled_at is not None,
        "version": version_of(row.status, row.phase, row.due_at, row.settled_at, row.workflow.status, told),
    }


PHASE_STATES = {
    "done": "done",
    "left": "skipped",
    "here": "in progress",
    "stopped": "stopped here",
    "ahead": "not reached",
}


@dataclass(frozen=True)
class PhaseMark:
    phase: str
    how: str

    @property
    def words(self) -> str:
        return PHASE_STATES[self.how]


def track(row: Run) -> list[PhaseMark]:
    """Return the phases of the run, each with its state; a producer has only the first and the last phase."""
    phases = (Phase.PREPARING, Phase.COMMITTED) if row.handler.is_producer else PHASES
    at = phases.index(Phase(row.phase)) if row.phase in phases else 0
    marks = [PhaseMark(phase, "done" if number < at else "ahead") for number, phase in enumerate(phases)]
    if not row.effect and at > PHASES.index(Phase.MUTATED):
        marks[2:4] = [PhaseMark(phase, "left") for phase in (Phase.MUTATING, Phase.MUTATED)]
    here = "done" if row.phase == Phase.COMMITTED else "here" if row.is_active else "stopped"
    marks[at] = PhaseMark(phases[at], here)
    return marks


def _reserved(row: Run) -> list[Event]:
    """Return the events that the run reserved, even if a later attempt has taken over these reservations."""
    ids = (row.prepare_result or {}).get("reserve", [])[:MOST_EVENTS]
    return list(_events().filter(pk__in=ids).order_by("pk")) if ids else []


def _events() -> Any:
    return Event.objects.select_related("topic").defer("payload", "caused_by")


def _tries(row: Run) -> str:
    """Describe how often and for which reasons the run was attempted again since a user last resolved it."""
    ways = {"transient": "transient failures", "reconciled": "reconciliations"}
    ways |= {"crashes": "lost workers", "fixes": "automatic fixes"}
    counts = [(way, getattr(row, name)) for name, way in ways.items()]
    return ", ".join(f"{way}: {count:,}" for way, count in counts if count) or "none"


def _records(row: Run) -> list[Activity]:
    records = Activity.objects.filter(target_type="run", target_id=str(row.pk), task_key=None)
    return list(records.defer("traceback", "result", "details").order_by("-pk")[:MOST_EVENTS])
