"""The list of executions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from activities.models import Activity
from database import clock
from execution.models import Execution
from schedules.models import Occurrence, Schedule
from text.numbers import whole_number
from web.filters import TimesForm, search_box
from web.keyset import OLDER, Pages, address, look_back, newest_first
from web.operating import register
from web.page import fragment, is_asked_by, page, version_of

VIEW = "execution.view_execution"
REACH = 20_000
STATES = {
    "in_progress": "in progress",
    "cancelling": "cancelling",
    "late": "late",
    "completed": "completed",
    "failed": "failed",
    "partial": "partly failed",
    "cancelled": "cancelled",
}

register(Execution, view_permission=VIEW)


class ExecutionFilters(TimesForm):
    q = search_box("Name or number")
    state = forms.ChoiceField(required=False, choices=[("", "Any"), *STATES.items()])
    source = forms.ChoiceField(
        required=False,
        choices=[("", "Any"), *Occurrence.Source.choices, ("job", "Ad hoc, without a schedule")],
    )
    schedule = forms.IntegerField(required=False, min_value=1, max_value=2**63 - 1, widget=forms.HiddenInput)
    field_order = ("q", "state", "source", "since", "until", "schedule")


@page(VIEW)
def executions(request: HttpRequest) -> HttpResponse:
    context = _list_context(request)
    if is_asked_by(request, "rows"):
        return fragment(request, "web/executions/_rows.html", context, version=context["version"])
    return render(request, "web/executions/list.html", {"title": "Executions", **context})


def _list_context(request: HttpRequest) -> dict[str, Any]:
    form = ExecutionFilters(request.GET)
    form.is_valid()
    wanted = {name: value for name, value in form.cleaned_data.items() if value}
    pages = _find_executions(request, wanted)
    of = Schedule.objects.filter(pk=wanted["schedule"]).first() if "schedule" in wanted else None
    return {
        "form": form,
        "is_filtered": bool(wanted),
        "of": of,
        "pages": pages,
        "rows": [_row(execution) for execution in pages.rows],
        "is_live": OLDER not in request.GET,
        "version": _version(pages.rows),
        "here": address(request),
    }


def _find_executions(request: HttpRequest, wanted: dict[str, Any]) -> Pages[Execution]:
    """Find a page of executions.

    All executions, running ones, and those of one schedule are found through an index, unless a time range is
    given. With other filters, the search goes back from the newest row.
    """
    rows = Execution.objects.with_progress().select_related("activity", "occurrence", "schedule")
    rows = rows.defer("activity__traceback", "activity__result", "activity__details", "plan", "last_result")
    rows = rows.filter(_condition(wanted))
    state = wanted.get("state", "")
    if state == "late":
        rows = rows.late(clock.now())
    if state == "partial":
        rows = rows.partial()
    is_indexed = not wanted or wanted.keys() == {"schedule"} or state in ("in_progress", "cancelling", "late")
    if is_indexed and not {"since", "until"} & wanted.keys():
        return newest_first(request, rows)
    between = {"since": wanted.get("since"), "until": wanted.get("until")}
    return look_back(request, rows, by="started_at", reach=REACH, **between)


def _condition(wanted: dict[str, Any]) -> Q:
    condition = Q()
    if text := wanted.get("q"):
        pk = whole_number(text)
        condition &= Q(schedule_name__icontains=text) | (Q() if pk is None else Q(pk=pk))
    match wanted.get("state"):
        case "completed" | "failed" | "cancelled" | "in_progress" as status:
            condition &= Q(status=status)
        case "cancelling":
            condition &= Q(status="in_progress", cancel_requested_at__isnull=False)
    if source := wanted.get("source"):
        condition &= Q(schedule=None) if source == "job" else Q(source=source)
    return condition & (Q(schedule=wanted["schedule"]) if "schedule" in wanted else Q())


def _row(execution: Any) -> dict[str, Any]:
    now = clock.now()
    return {
        "execution": execution,
        "states": states(execution, has_successes=execution.has_successes),
        "who": who(execution),
        "took": (execution.finished_at or now) - execution.started_at,
        "error": execution.error.partition("\n")[0][:160],
    }


def states(execution: Execution, *, has_successes: bool) -> list[str]:
    """Return the states that the execution's badges show."""
    is_partial = execution.status == Execution.Status.FAILED and has_successes
    is_late = execution.is_late(clock.now())
    has_warnings = execution.activity.status == Activity.Status.COMPLETE_WITH_WARNING
    state = execution.activity.status if has_warnings else execution.state
    return [state, *["partial"] * is_partial, *["late"] * is_late]


def who(execution: Execution) -> str:
    by = execution.activity
    return "the schedule" if by.initiator_type == "schedule" else by.initiator_name


def _version(rows: Sequence[Any]) -> str:
    return version_of([(row.pk, row.state, row.groups_reached) for row in rows])
