"""The page of one execution, with its steps, output, items, data and audit records."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from activities.models import Activity, ActivityItem
from activities.transcript import attempts_of, with_last_lines
from database import clock
from execution import failure
from execution.history import usual_duration_of
from execution.models import Execution, WorkerTask
from execution.progress import ExecutionProgress, Timing
from execution.queue.waits import reasons
from execution.steps.binding import FilledConfig, shown
from web import gantt
from web.output import download, follow, items_page, output_page
from web.page import fragment, page, version_of
from web.templatetags.web import as_json

from .executions import VIEW, states, who
from .queue import REASONS_SECONDS

READ = "activities.view_activity"
TABS = {
    "steps": "Steps",
    "output": "Output",
    "items": "Items",
    "data": "Inputs and results",
    "audit": "Audit",
}
FOR_READERS = ("output", "items", "data", "audit")
MOST_ATTEMPTS = 1_000
MOST_AUDITED = 100
# A limit for each step, because several steps may have the same long input.
MOST_INPUT = 20_000
# A running bar is redrawn once it has grown by this factor.
GROWTH = 1.03


@page(VIEW)
def execution(request: HttpRequest, pk: int) -> HttpResponse:
    row = _execution(pk)
    tabs = {name: label for name, label in TABS.items() if _may_read(request) or name not in FOR_READERS}
    tab = request.GET.get("tab", "")
    tab = tab if tab in tabs else "steps"
    usual = usual_duration_of(row.schedule_id)
    before, after = row.neighbours()
    context = {
        "title": str(row),
        "tabs": list(tabs.items()),
        **_live(request, row, _attempts(row.activity_id), tab=tab, usual=usual),
        "before": before,
        "after": after,
        "retries": list(row.retries.order_by("pk").values_list("pk", flat=True)[:10]),
        "zone": row.schedule.zone if row.schedule else UTC,
        "nominal_at": row.occurrence.nominal_at if row.occurrence else None,
        "lag": _lag(row),
    }
    match tab:
        case "output":
            context |= _output(request, row)
        case "items":
            items = ActivityItem.objects.filter(activity__parent=row.activity_id)
            context |= items_page(request, items, of=attempts_of(row.activity_id))
        case "data":
            context |= _data(row)
        case "audit":
            context |= {"records": _records(row)}
    return render(request, "web/executions/page.html", context)


@page(VIEW)
def execution_live(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the part of the page that refreshes itself.

    While nothing has changed, a request uses only one database query. The usual duration is a parameter of
    the request, and the plan is not read. What pending steps wait for is looked up only after a change, and
    every few seconds.
    """
    attempts = list(
        Activity.objects.filter(parent__in=Execution.objects.filter(pk=pk).values("activity"))
        .select_related("parent__execution")
        .defer(*(f"{of}{name}" for of in ("", "parent__") for name in ("traceback", "result", "details")))
        .defer("parent__execution__plan", "parent__execution__last_result")
        .order_by("step_index", "line", "attempt")[:MOST_ATTEMPTS]
    )
    if not attempts:
        raise Http404(f"Execution {pk} does not exist or has no steps.")
    root = attempts[0].parent
    assert root is not None
    row = root.execution
    tab = "steps" if request.GET.get("tab") == "steps" else ""
    is_final = row.status != Execution.Status.IN_PROGRESS
    if not is_final and request.GET.get("version") == _version(row, attempts, clock.now()):
        return HttpResponse(status=204)
    context = _live(request, row, attempts, tab=tab, usual=_usual_duration(request))
    context["is_changed"] = request.GET.get("state") != " ".join(context["states"])
    return fragment(
        request, "web/executions/_live.html", context, version=context["version"], is_final=is_final
    )


@page(READ)
def execution_output(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the lines of output that were written after the last request."""
    status, root = _status_and_root(pk)
    attempts = with_last_lines(attempts_of(root)).order_by("pk")[:MOST_ATTEMPTS]
    return follow(request, list(attempts), is_final=status != Execution.Status.IN_PROGRESS)


@page(READ)
def execution_output_text(request: HttpRequest, pk: int) -> HttpResponse:
    _, root = _status_and_root(pk)
    attempts = with_last_lines(attempts_of(root)).order_by("pk")[:MOST_ATTEMPTS]
    return download(request, list(attempts), name=f"execution-{pk}")


def _execution(pk: int) -> Execution:
    rows = Execution.objects.select_related("activity", "occurrence__backfill", "schedule", "retry_of")
    row = rows.defer("retry_of__plan").filter(pk=pk).first()
    if row is None:
        raise Http404(f"Execution {pk} does not exist.")
    return row


def _status_and_root(pk: int) -> tuple[str, int]:
    found = Execution.objects.filter(pk=pk).values_list("status", "activity").first()
    if found is None:
        raise Http404(f"Execution {pk} does not exist.")
    return found


def _attempts(root: int) -> list[Activity]:
    return list(attempts_of(root).order_by("step_index", "line", "attempt")[:MOST_ATTEMPTS])


def _live(
    request: HttpRequest,
    row: Execution,
    attempts: Sequence[Activity],
    *,
    tab: str,
    usual: timedelta | None,
) -> dict[str, Any]:
    """Return the template context of the part of the page that refreshes itself."""
    now = clock.now()
    progress = ExecutionProgress.of(attempts)
    timing = Timing(row.started_at, row.finished_at, usual, now)
    last = {attempt.line: attempt for attempt in attempts}
    told = states(row, has_successes=any(each.status in failure.SUCCEEDED for each in attempts))
    return {
        "execution": row,
        "tab": tab,
        "states": told,
        "state": " ".join(told),
        "is_final": row.finished_at is not None,
        "who": who(row),
        "elapsed": timing.elapsed,
        # After a cancel, only clean-up steps are still pending.
        "clean_up": [each.target_name for each in last.values() if each.status == Activity.Status.PENDING],
        "usual": usual,
        "usual_seconds": round(usual.total_seconds(), 3) if usual else "",
        "ends_at": timing.ends_at,
        "over": timing.over,
        "progress": progress,
        "percent": round(progress.part * 100),
        "chart": gantt.chart(attempts, start=row.started_at, now=row.finished_at or now)
        if tab == "steps"
        else None,
        "groups": _groups(attempts, _pending(row, attempts, now)) if tab == "steps" else [],
        "may_read": _may_read(request),
        "version": _version(row, attempts, now),
    }


class Pending(NamedTuple):
    """The time of a step's next attempt, or the reason why the step has not started."""

    next_try: datetime | None = None
    why: str = ""


def _pending(row: Execution, attempts: Sequence[Activity], now: datetime) -> dict[int, Pending]:
    """Return a dict from a pending step's line number in the plan to what the step waits for."""
    if not any(each.status == Activity.Status.PENDING for each in attempts):
        return {}
    # Tasks that have started and are waiting report the reason themselves.
    unclaimed = WorkerTask.objects.unclaimed().filter(execution=row.pk, begun_at=None)
    tasks = list(unclaimed.select_related("worker", "execution").defer("execution__plan"))
    later = [each for each in tasks if each.failures + each.crashes and each.available_at > now]
    why = reasons(tasks, now=now)
    return {each.line: Pending(why=why[each.pk]) for each in tasks} | {
        each.line: Pending(next_try=each.available_at) for each in later
    }


def _groups(
    attempts: Sequence[Activity], pending: Mapping[int, Pending]
) -> list[tuple[int, list[tuple[list[Activity], Pending]]]]:
    """Return pairs of an index and steps; a step is a pair of its attempts, newest first, and a Pending."""
    groups: dict[int, dict[int, list[Activity]]] = defaultdict(lambda: defaultdict(list))
    for attempt in attempts:
        groups[attempt.step_index or 0][attempt.line or 0].insert(0, attempt)
    return [
        (index, [(each, pending.get(line, Pending())) for line, each in steps.items()])
        for index, steps in groups.items()
    ]


def _version(row: Execution, attempts: Sequence[Activity], now: datetime) -> str:
    """Return a hash that changes when the page has to be refreshed.

    While steps are pending, the hash changes every few seconds, because what they wait for can change.
    """
    told = [
        (each.pk, each.status, each.progress_done, each.progress_total, each.message) for each in attempts
    ]
    elapsed = (row.finished_at or now) - row.started_at
    age = int(math.log(max(elapsed.total_seconds(), 3)) / math.log(GROWTH))
    is_pending = any(each.status == Activity.Status.PENDING for each in attempts)
    reasons_age = int(now.timestamp() / REASONS_SECONDS) if is_pending else 0
    return version_of(row.status, row.cancel_requested_at, row.current_index, age, reasons_age, told)


def _usual_duration(request: HttpRequest) -> timedelta | None:
    try:
        usual = float(request.GET.get("usual", ""))
    except ValueError:
        return None
    return timedelta(seconds=usual) if 0 <= usual < 10**9 else None


def _lag(row: Execution) -> timedelta | None:
    """Return how late an automatic execution started; None for other executions."""
    if row.occurrence is None or row.source != "auto":
        return None
    return max(row.started_at - row.occurrence.planned_at, timedelta(0))


def _output(request: HttpRequest, row: Execution) -> dict[str, Any]:
    attempts = list(with_last_lines(attempts_of(row.activity_id)).order_by("pk")[:MOST_ATTEMPTS])
    return output_page(request, attempts, is_final=row.status != Execution.Status.IN_PROGRESS)


def _data(row: Execution) -> dict[str, Any]:
    """Return the input and the result of each step, in the order of the plan."""
    rows = list(Activity.objects.filter(parent=row.activity_id).defer("traceback").order_by("attempt"))
    by_line = {attempt.line: attempt for attempt in rows}
    by_key = {attempt.task_key: attempt for attempt in rows if attempt.task_key}
    plan = row.plan if isinstance(row.plan, dict) else {}
    data = []
    for step in plan.get("steps") or []:
        given = shown(step, execution_id=row.pk, attempts=by_key, last_result=row.last_result)
        data.append(_step_data(step, given, by_line.get(step.get("line"))))
    return {"data": data, "last_result": as_json(row.last_result) if row.last_result is not None else ""}


def _step_data(step: Mapping[str, Any], given: FilledConfig, last: Activity | None) -> dict[str, Any]:
    config, template = as_json(given.config), as_json(step.get("config"))
    return {
        "step": step,
        "config": config if len(config) <= MOST_INPUT else f"{config[:MOST_INPUT]}\n… truncated",
        "template": template if template != config else "",
        "missing": list(given.missing.items()),
        "last": last,
        "result": as_json(last.result) if last and last.result is not None else "",
    }


def _records(row: Execution) -> list[Activity]:
    changes = Activity.objects.administrative().filter(target_type="execution", target_id=str(row.pk))
    found = list(changes.defer("traceback", "result").order_by("-pk")[:MOST_AUDITED])
    return [*found, row.activity]


def _may_read(request: HttpRequest) -> bool:
    return request.user.has_perm(READ)
