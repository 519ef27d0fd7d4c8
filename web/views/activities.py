"""Pages of activities: the list, and one activity with its output and items."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse

from activities import vocabulary
from activities.models import Activity, ActivityItem
from activities.transcript import with_last_lines
from database import clock
from database.batched import together
from execution.models import WorkerTask
from execution.queue.waits import reasons
from schedules.registry import step_types
from text.words import as_json, said
from web.filters import SearchField, TimesForm, search_box
from web.keyset import OLDER, Pages, address, look_back, newest_first
from web.operating import register
from web.output import download, follow, items_page, output_page
from web.pace import pace
from web.page import fragment, is_asked_by, page, version_of
from workflows.models import Run, Topic, Workflow
from workflows.models.run import LARGE
from workflows.steps import HandlerStep
from workflows.words import NOTHING_TO_DO

VIEW = "activities.view_activity"
CHANGES = "changes"
REACH = 50_000
MOST_PARTS = 200
REASONS_SECONDS = 15
# The condition of the partial index. SQLite uses the index only if both conditions are written alike.
OPEN = "('pending', 'in_progress')"
UNREAD = ("traceback", "result", "details")
# The URL name of the page for each type of target.
PAGES = {
    "schedule": "schedule",
    "execution": "execution",
    "sharedcalendar": "calendar",
    "tasktemplate": "template",
    "backfill": "backfill",
    "limit": "limit",
    "worker": "worker",
    "endpoint": "endpoint",
    "delivery": "delivery",
    "activity": "activity",
    "run": "run",
    "event": "event",
}
# Targets whose pages have a slug in the address instead of a number.
NAMED: dict[str, type[Workflow | Topic]] = {"workflow": Workflow, "topic": Topic}

register(
    Activity,
    view_permission=VIEW,
    rows=lambda request: Activity.objects.seen_by(request.user.has_perm),
)


class ActivityFilters(TimesForm):
    q = search_box("Name, message or error")
    status = forms.ChoiceField(label="State", required=False)
    operation = forms.ChoiceField(required=False)
    target_type = forms.ChoiceField(label="Type", required=False)
    initiator_type = forms.ChoiceField(
        label="Requested by",
        required=False,
        choices=[
            ("", "Anyone"),
            *[("user", "A person"), ("token", "An API token"), ("schedule", "A schedule")],
            ("system", "JIM"),
        ],
    )
    initiator = SearchField(label="Requester's name")
    idle = forms.BooleanField(label="Include runs that found nothing to do", required=False)
    target_id = SearchField(widget=forms.HiddenInput)
    field_order = (
        *("q", "status", "operation", "target_type", "initiator_type", "initiator", "since", "until"),
        *("idle", "target_id"),
    )

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        kinds = vocabulary.target_types() | set(step_types)
        self._choose("status", [(value, said(value)) for value in Activity.Status.values])
        self._choose(
            "operation",
            [
                (CHANGES, "all changes"),
                *((name, name) for name in sorted(vocabulary.operations())),
            ],
        )
        self._choose("target_type", [(kind, kind.replace("_", " ")) for kind in sorted(kinds)])

    def _choose(self, name: str, choices: list[tuple[str, str]]) -> None:
        self.fields[name].choices = [("", "Any"), *choices]  # type: ignore[attr-defined]


@page(VIEW)
def activities_list(request: HttpRequest) -> HttpResponse:
    context = _list_context(request)
    if is_asked_by(request, "rows"):
        return fragment(request, "web/activities/_rows.html", context, version=context["version"])
    return render(request, "web/activities/list.html", {"title": "Activities", **context})


def _list_context(request: HttpRequest) -> dict[str, Any]:
    form = ActivityFilters(request.GET)
    form.is_valid()
    wanted = {name: value for name, value in form.cleaned_data.items() if value}
    pages = _find_activities(request, wanted)
    return {
        "form": form,
        "is_filtered": bool(wanted),
        "reach": f"{REACH:,}",
        "pages": pages,
        "rows": [_row(activity) for activity in pages.rows],
        "is_live": OLDER not in request.GET,
        "version": version_of([(row.pk, row.status, row.message) for row in pages.rows]),
        "here": address(request),
    }


def _find_activities(request: HttpRequest, wanted: dict[str, Any]) -> Pages[Activity]:
    """Find a page of activities.

    Without a time range, an index finds open activities, those of one target, and all activities including
    runs that found nothing to do. In all other cases, the search goes back from the newest row.
    """
    rows = Activity.objects.seen_by(request.user.has_perm).defer(*UNREAD).filter(_condition(wanted))
    if not wanted:
        # Workflows that look for work every few seconds would fill the list with runs that found nothing.
        idle = Q(target_type=HandlerStep.name, message=NOTHING_TO_DO)
        return look_back(request, rows.exclude(idle), by="created_at", reach=REACH)
    if wanted.get("status") in Activity.OPEN:
        rows = rows.filter(RawSQL(f"status IN {OPEN}", [], output_field=BooleanField()))  # noqa: S611
    is_of_one = {"target_type", "target_id"} <= wanted.keys()
    if is_of_one:
        # Leave out attempts of steps, which have a task key. The other activities of a target have an index.
        rows = rows.filter(task_key=None)
    is_indexed = wanted.keys() == {"idle"} or is_of_one or wanted.get("status") in Activity.OPEN
    if is_indexed and not {"since", "until"} & wanted.keys():
        return newest_first(request, rows)
    between = {"since": wanted.get("since"), "until": wanted.get("until")}
    return look_back(request, rows, by="created_at", reach=REACH, **between)


def _condition(wanted: dict[str, Any]) -> Q:
    exact = {
        name: wanted[name]
        for name in ("status", "target_type", "target_id", "initiator_type")
        if name in wanted
    }
    condition = Q(**exact)
    if operation := wanted.get("operation"):
        condition &= ~Q(operation=Activity.RUN) if operation == CHANGES else Q(operation=operation)
    if name := wanted.get("initiator"):
        condition &= Q(initiator_name__icontains=name)
    if text := wanted.get("q"):
        found = Q(target_name__icontains=text) | Q(message__icontains=text) | Q(error__icontains=text)
        condition &= found | Q(initiator_name__icontains=text)
    return condition


def _row(activity: Activity) -> dict[str, Any]:
    return {
        "activity": activity,
        "words": (activity.error or activity.message).partition("\n")[0][:160],
        "took": activity.duration,
    }


@page(VIEW)
def activity(request: HttpRequest, pk: int) -> HttpResponse:
    [row] = _one(request, pk, whole=True)
    parts = row.children.defer(*UNREAD).order_by("step_index", "line", "attempt")[: MOST_PARTS + 1]
    context = {
        "title": row.target_name,
        **LiveActivity.at(row).context(),
        **output_page(request, [row], is_final=row.is_final),
        **items_page(
            request, ActivityItem.objects.filter(activity=row), of=Activity.objects.filter(pk=row.pk)
        ),
        "parts": list(parts),
        "most_parts": MOST_PARTS,
        "result": as_json(row.result),
        "details": as_json(row.details),
    }
    return render(request, "web/activities/page.html", context)


@page(VIEW)
def activity_live(request: HttpRequest, pk: int) -> HttpResponse:
    [row] = _one(request, pk)
    live = LiveActivity.at(row)
    if not row.is_final and request.GET.get("version") == live.version:
        return HttpResponse(status=204)
    return fragment(
        request, "web/activities/_live.html", live.context(), version=live.version, is_final=row.is_final
    )


@page(VIEW)
def activity_output(request: HttpRequest, pk: int) -> HttpResponse:
    rows = _one(request, pk)
    return follow(request, rows, is_final=rows[0].is_final)


@page(VIEW)
def activity_output_text(request: HttpRequest, pk: int) -> HttpResponse:
    return download(request, _one(request, pk), name=f"activity-{pk}")


def _one(request: HttpRequest, pk: int, *, whole: bool = False) -> list[Any]:
    found = Activity.objects.seen_by(request.user.has_perm).filter(pk=pk)
    rows = with_last_lines(found).select_related("parent__execution", "execution")
    rows = rows.defer("parent__execution__plan", "execution__plan", *(f"parent__{name}" for name in UNREAD))
    if not (one := list(rows if whole else rows.defer("result", "details"))):
        raise Http404(f"Activity {pk} does not exist.")
    return one


@dataclass(frozen=True)
class LiveActivity:
    """An activity with its attempts, its task and its workflow run, as its page shows it."""

    row: Any
    chain: list[Activity]
    task: WorkerTask | None
    run: Run | None
    now: datetime

    @classmethod
    def at(cls, row: Any) -> LiveActivity:
        chain, tasks, runs = together(row.attempts(), _tasks(row), _runs(row))
        return cls(row, chain or [row], next(iter(tasks), None), next(iter(runs), None), clock.now())

    @property
    def version(self) -> str:
        """Return a hash that changes when the page has to be refreshed.

        While the activity is pending, the hash changes every few seconds, because the reason for waiting can
        change; and while the page shows a pace, because the pace falls when there is no progress.
        """
        row, told = self.row, [(each.pk, each.status) for each in self.chain]
        is_aging = row.status == Activity.Status.PENDING or bool(self.pace)
        age = int(self.now.timestamp() / REASONS_SECONDS) if is_aging else 0
        task = self.task and (self.task.status, self.task.cancel_requested_at, self.task.priority)
        return version_of(row.status, row.progress_done, row.message, task, age, told)

    @property
    def pace(self) -> str:
        row = self.row
        if row.status != Activity.Status.IN_PROGRESS or row.progress_done is None or row.executed_at is None:
            return ""
        return pace(row.progress_done, row.progress_total, since=row.executed_at, now=self.now)

    def context(self) -> dict[str, Any]:
        """Return the template context of the part of the page that refreshes itself."""
        row, task = self.row, self.task
        return {
            "activity": row,
            "task": task,
            "why": reasons([task], now=self.now)[task.pk] if task else "",
            "chain": self.chain,
            "execution": _execution(row),
            "run": self.run,
            "target_url": target_url(row),
            "pace": self.pace,
            "elapsed": (row.finished_at or self.now) - row.executed_at if row.executed_at else None,
            "is_final": row.is_final,
            "version": self.version,
        }


def _tasks(row: Activity) -> QuerySet[WorkerTask]:
    """Select the task of the attempt, if it is still in the queue."""
    if row.is_final or row.task_key is None:
        return WorkerTask.objects.none()
    tasks = WorkerTask.objects.filter(activity=row.pk).select_related("execution", "worker")
    return tasks.defer("execution__plan")


def _execution(row: Activity) -> Any:
    """Return the execution that the activity records or is part of, or None."""
    own = getattr(row, "execution", None)
    return own or (getattr(row.parent, "execution", None) if row.parent else None)


def _runs(row: Activity) -> QuerySet[Run]:
    """Select the workflow run that the activity records."""
    if row.task_key is None or row.target_type != HandlerStep.name:
        return Run.objects.none()
    rows = Run.objects.filter(key=row.task_key).select_related("handler", "workflow")
    return rows.defer(*LARGE, "handler__state")


def target_url(activity: Activity) -> str:
    """Return the address of the target's page, or an empty string for a target without a page."""
    if named := NAMED.get(activity.target_type):
        known: Workflow | Topic | None = named.objects.filter(pk=activity.target_id).first()
        return known.get_absolute_url() if known else ""
    try:
        return reverse(f"web:{PAGES[activity.target_type]}", args=[activity.target_id])
    except (KeyError, NoReverseMatch):
        return ""
