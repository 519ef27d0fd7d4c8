from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from activities.models import Activity, OutputLine
from database import clock
from execution.queue.waits import reasons
from operations.admin_pages import (
    EndlessChangeList,
    InWords,
    OperationsAdmin,
    RecordAdmin,
    admin_link,
    text_panel,
)
from schedules.admin.filters import ScheduleFilter
from text.words import NOTHING, as_json, badge, exact, moment, span

from . import limit_admin  # noqa: F401 registers itself
from .models import Execution, Reservation, Worker, WorkerTask
from .models.execution_queryset import ExecutionQuerySet
from .operations import (
    execution_link,
    execution_url,
)

ATTEMPTS_SHOWN = 1_000
TAILS_SHOWN = 10
TAIL_LINES = 10


class ExecutionStateFilter(admin.SimpleListFilter):
    title = parameter_name = "state"
    STATES: ClassVar = {
        "in progress": Q(status="in_progress"),
        "cancelling": Q(status="in_progress", cancel_requested_at__isnull=False),
        "completed": Q(status="completed"),
        "failed": Q(status="failed"),
        "cancelled": Q(status="cancelled"),
        "late": Q(),
        "partial": Q(),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in self.STATES]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Execution]:
        rows: ExecutionQuerySet = queryset.filter(self.STATES.get(self.value() or "", Q()))
        if self.value() == "partial":
            return rows.partial()
        return rows.late(clock.now()) if self.value() == "late" else rows


@admin.register(Execution)
class ExecutionAdmin(RecordAdmin[Execution], OperationsAdmin[Execution]):
    list_display = (
        "__str__",
        "state_badge",
        "source",
        "who",
        "started",
        "duration",
        "group",
        "words",
    )
    list_filter: ClassVar = [ExecutionStateFilter, "source", ScheduleFilter]
    list_select_related = ("activity", "occurrence", "schedule")
    search_fields = ("schedule_name",)
    fields = (
        "state_badge",
        "schedule_link",
        "source",
        "who",
        "nominal",
        "times",
        "limits",
        "group",
        "repeats",
        "root",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Execution]:
        rows: ExecutionQuerySet = super().get_queryset(request)  # type: ignore[assignment]
        return rows.with_progress()

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        execution: Execution = context["original"]
        context["is_moving"] = execution.status == Execution.Status.IN_PROGRESS
        context["panels"] = [
            text_panel("Error", execution.error),
            render_to_string("admin/execution/_steps.html", _steps(request, execution)),
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="state")
    def state_badge(self, execution: Execution) -> SafeString:
        marks = [execution.state]
        if execution.status == Execution.Status.FAILED and getattr(execution, "has_successes", False):
            marks.append("partial")
        if execution.is_late(clock.now()):
            marks.append("late")
        return format_html_join(" ", "{}", ((badge(mark),) for mark in marks))

    @admin.display(description="schedule")
    def schedule_link(self, execution: Execution) -> SafeString | str:
        if execution.schedule_id is None:
            return execution.schedule_name
        url = reverse("admin:schedules_schedule_change", args=[execution.schedule_id])
        return format_html('<a href="{}">{}</a>', url, execution.schedule)

    def who(self, execution: Execution) -> str:
        by = execution.activity
        return "the schedule" if by.initiator_type == "schedule" else by.initiator_name

    def started(self, execution: Execution) -> SafeString:
        return moment(execution.started_at, now=clock.now())

    def duration(self, execution: Execution) -> str:
        return span((execution.finished_at or clock.now()) - execution.started_at)

    def group(self, execution: Any) -> str:
        return f"{execution.groups_reached or 0} of {execution.groups or 0}"

    @admin.display(description="error")
    def words(self, execution: Execution) -> str:
        return execution.error.partition("\n")[0][:120]

    def times(self, execution: Execution) -> str:
        started = f"started {exact(execution.started_at)}"
        if execution.finished_at is None:
            return f"{started} · running for {self.duration(execution)}"
        return f"{started} · ended {exact(execution.finished_at)} · took {self.duration(execution)}"

    @admin.display(description="nominal time")
    def nominal(self, execution: Execution) -> SafeString | str:
        """Return the nominal time, with a link to the occurrence that the execution belongs to."""
        if execution.occurrence is None:
            return NOTHING
        zone = execution.schedule.zone if execution.schedule else UTC
        url = reverse("admin:schedules_occurrence_change", args=[execution.occurrence.pk])
        return format_html('<a href="{}">{}</a>', url, exact(execution.occurrence.nominal_at, zone))

    @admin.display(description="limits")
    def limits(self, execution: Execution) -> str:
        """Describe the deadline and timeout; if the execution has ended, only those that it exceeded."""
        is_late, is_running = execution.is_late(clock.now()), execution.finished_at is None
        limits = (
            ("late since" if is_late else "late after", execution.deadline_at, is_late),
            (
                "timed out" if execution.is_timed_out else "times out",
                execution.timeout_at,
                execution.is_timed_out,
            ),
        )
        told = [
            f"{words} {exact(at)}" for words, at, is_reached in limits if at and (is_reached or is_running)
        ]
        return " · ".join(told) or NOTHING

    @admin.display(description="retry of")
    def repeats(self, execution: Execution) -> SafeString | str:
        return execution_link(execution.retry_of_id) if execution.retry_of_id else NOTHING

    @admin.display(description="activity")
    def root(self, execution: Execution) -> SafeString:
        return admin_link(execution.activity, execution.activity.target_name)


class QueueChangeList(EndlessChangeList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        _say_why(self.result_list)


@admin.register(WorkerTask)
class QueueAdmin(RecordAdmin[WorkerTask], OperationsAdmin[WorkerTask]):
    list_title = "Queue"
    list_display = ("name", "state", "why", "execution_link", "attempt", "pool", "priority")
    list_filter = (("status", InWords),)
    search_fields = ("name",)
    oldest_first = True
    fields = (
        "name",
        "state",
        "why",
        "execution_link",
        "group",
        "attempt",
        "pool",
        "isolation",
        "key",
        "activity_link",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkerTask]:
        return super().get_queryset(request).select_related("execution", "worker").defer("execution__plan")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[QueueChangeList]:
        return QueueChangeList

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> WorkerTask | None:
        task = super().get_object(request, object_id, from_field)
        if task is not None:
            _say_why([task])
        return task

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        task: WorkerTask = context["original"]
        context["panels"] = [text_panel("Step", as_json(task.step))]
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="status")
    def state(self, task: WorkerTask) -> SafeString:
        return badge("cancelling" if task.cancel_requested_at else task.status)

    def why(self, task: Any) -> str:
        return str(task.why)

    @admin.display(description="execution")
    def execution_link(self, task: WorkerTask) -> SafeString | str:
        if task.execution is None:
            return NOTHING
        return format_html('<a href="{}">{}</a>', execution_url(task.execution.pk), task.execution)

    def group(self, task: WorkerTask) -> int:
        """Return the position of the task's group in its execution, counted from 1; 1 for a single job."""
        if task.execution is None:
            return 1
        steps = Activity.objects.filter(parent=task.execution.activity_id, step_index__lte=task.step_index)
        return steps.order_by().values("step_index").distinct().count()

    @admin.display(description="activity")
    def activity_link(self, task: WorkerTask) -> SafeString:
        return admin_link(task.activity, task.activity.target_name)


@admin.register(Worker)
class WorkerAdmin(RecordAdmin[Worker]):
    COLUMNS: ClassVar = (
        "state",
        "serves",
        "seats",
        "busy",
        "started",
        "beat",
        "lease",
        "host_clock",
        "stale_refused",
    )
    list_display = ("__str__", *COLUMNS)
    list_filter = (("status", InWords),)
    ordering = ("-started_at",)
    fields = ("id", "host", "pid", *COLUMNS, "ended")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        processing = Count("tasks", filter=Q(tasks__status=WorkerTask.Status.PROCESSING))
        return super().get_queryset(request).annotate(busy=processing)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ChangeList

    @admin.display(description="status")
    def state(self, worker: Worker) -> SafeString:
        return badge(worker.status)

    @admin.display(description="pools")
    def serves(self, worker: Worker) -> str:
        return ", ".join(worker.pools) or "all"

    def busy(self, worker: Any) -> int:
        return int(worker.busy)

    def started(self, worker: Worker) -> SafeString:
        return moment(worker.started_at, now=clock.now())

    @admin.display(description="last heartbeat")
    def beat(self, worker: Worker) -> SafeString:
        return moment(worker.beat_at, now=clock.now())

    @admin.display(description="lease ends")
    def lease(self, worker: Worker) -> SafeString:
        return moment(worker.lease_until if worker.ended_at is None else None, now=clock.now())

    @admin.display(description="clock", empty_value="correct")
    def host_clock(self, worker: Worker) -> str | None:
        return worker.clock_trouble or None

    def ended(self, worker: Worker) -> SafeString:
        return moment(worker.ended_at, now=clock.now())


@admin.register(Reservation)
class ReservationAdmin(RecordAdmin[Reservation], OperationsAdmin[Reservation]):
    """Direct requests that hold or are waiting for a seat, and the most recently ended ones of each pool."""

    list_display = ("holder", "pool", "state_badge", "asked", "taken", "lease", "activity_link")
    search_fields = ("holder", "pool")
    ordering = ("-created_at",)
    fields = (
        "holder",
        "pool",
        "state_badge",
        "limits",
        "asked",
        "taken",
        "lease",
        "released",
        "activity_link",
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Reservation]:
        return super().get_queryset(request).select_related("activity")

    @admin.display(description="state")
    def state_badge(self, reservation: Reservation) -> SafeString:
        return badge(reservation.state)

    @admin.display(description="limit keys")
    def limits(self, reservation: Reservation) -> str:
        return ", ".join(reservation.limits)

    def asked(self, reservation: Reservation) -> SafeString:
        return moment(reservation.created_at, now=clock.now())

    def taken(self, reservation: Reservation) -> SafeString:
        return moment(reservation.taken_at, now=clock.now())

    def released(self, reservation: Reservation) -> SafeString:
        return moment(reservation.released_at, now=clock.now())

    @admin.display(description="lease ends")
    def lease(self, reservation: Reservation) -> SafeString:
        is_live = reservation.released_at is None
        return moment(reservation.lease_until if is_live else None, now=clock.now())

    @admin.display(description="activity")
    def activity_link(self, reservation: Reservation) -> SafeString | str:
        return (
            NOTHING
            if reservation.activity is None
            else admin_link(reservation.activity, reservation.activity.target_name)
        )


def _say_why(tasks: Sequence[Any]) -> None:
    why = reasons(tasks, now=clock.now())
    for task in tasks:
        task.why = why[task.pk]


def _steps(request: HttpRequest, execution: Execution) -> dict[str, Any]:
    """Return the template context for the steps of an execution, by group, with the attempts of each step.

    The context contains the output of attempts only if the user may view activities.
    """
    attempts = list(
        Activity.objects.filter(parent=execution.activity_id)
        .defer("traceback", "result", "details")
        .order_by("step_index", "line", "attempt")[:ATTEMPTS_SHOWN]
    )
    can_read = request.user.has_perm("activities.view_activity")
    tails = _tails(attempts) if can_read else {}
    by_line: dict[int | None, list[tuple[Activity, list[OutputLine]]]] = defaultdict(list)
    for attempt in attempts:
        by_line[attempt.line].append((attempt, tails.get(attempt.pk, [])))
    groups: dict[int, list[Any]] = defaultdict(list)
    for step in execution.plan["steps"]:
        groups[step["index"]].append((step, by_line[step["line"]]))
    return {"groups": sorted(groups.items()), "execution": execution, "can_read": can_read}


def _tails(attempts: Sequence[Activity]) -> dict[int, list[OutputLine]]:
    """Return a dict from attempt id to last output lines, for at most TAILS_SHOWN attempts that have begun.

    Running attempts are chosen first, then failed ones, then the others; of each kind, the newest first.
    """
    began = [attempt for attempt in attempts if attempt.executed_at is not None]
    began.sort(key=lambda attempt: (not attempt.is_final, attempt.failed, attempt.pk), reverse=True)
    return {
        attempt.pk: list(attempt.output.order_by("-number")[:TAIL_LINES])[::-1]
        for attempt in began[:TAILS_SHOWN]
    }
