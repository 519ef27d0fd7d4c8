"""Executions: runs of schedules and of job groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from django.db.models import Exists, OuterRef, Q
from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.models import Activity
from api.filtering import Filters, MomentFilter, WholeFilter
from api.paging import HistoryPages, HistoryRange
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, accepted
from database import clock
from execution import failure
from execution.models import Execution, WorkerTask
from execution.models.execution_queryset import ExecutionQuerySet
from execution.progress import ExecutionProgress
from execution.queue.waits import reasons
from schedules.models import Occurrence, Overlap, Refused
from schedules.permissions import RUN

from .attempts import AttemptSerializer, InitiatorSerializer
from .base import ListedResource

MOST_ATTEMPTS = 2_000
STATES = ("in_progress", "cancelling", "completed", "failed", "cancelled")
CONDITIONS = {
    "in_progress": Q(status="in_progress"),
    "cancelling": Q(status="in_progress", cancel_requested_at__isnull=False),
    "completed": Q(status="completed"),
    "failed": Q(status="failed"),
    "cancelled": Q(status="cancelled"),
}
# States that only a few executions have at any time.
RUNNING = ("in_progress", "cancelling", "late")
VIEW = "execution.view_execution"


class ExecutionSerializer(serializers.ModelSerializer[Execution]):
    schedule = serializers.IntegerField(
        source="schedule_id",
        allow_null=True,
        help_text="The id of the schedule that was run. Null for a job group.",
    )
    name = serializers.CharField(
        source="schedule_name", help_text="The name of the schedule or job group that was run."
    )
    state = serializers.ChoiceField(choices=["in_progress", "cancelling", "completed", "failed", "cancelled"])
    is_late = serializers.SerializerMethodField(
        help_text="Whether the execution is still running after its deadline."
    )
    is_partial = serializers.SerializerMethodField(
        help_text="Whether the execution failed, but some of its steps succeeded."
    )
    initiator = InitiatorSerializer(source="activity")
    activity = serializers.IntegerField(
        source="activity_id", help_text="The id of the activity that records the whole execution."
    )
    occurrence = serializers.IntegerField(source="occurrence_id", allow_null=True)
    nominal_at = serializers.DateTimeField(
        source="occurrence.nominal_at",
        allow_null=True,
        default=None,
        help_text="The scheduled time that the execution is for. Null for a job group.",
    )
    retry_of = serializers.IntegerField(
        source="retry_of_id",
        allow_null=True,
        help_text="The id of the execution that this execution retries. Null if this execution is not a "
        "retry.",
    )

    class Meta:
        model = Execution
        fields: tuple[str, ...] = (
            "id",
            "name",
            "schedule",
            "state",
            "source",
            "initiator",
            "nominal_at",
            "started_at",
            "finished_at",
            "deadline_at",
            "timeout_at",
            "is_late",
            "is_timed_out",
            "is_partial",
            "cancel_requested_at",
            "cancel_reason",
            "error",
            "current_index",
            "occurrence",
            "retry_of",
            "activity",
        )
        extra_kwargs = {
            "current_index": {
                "help_text": "The index that the running steps share. If the execution has ended, the index "
                "of the steps that ran last."
            }
        }

    def get_is_late(self, execution: Execution) -> bool:
        return execution.is_late(clock.now())

    def get_is_partial(self, execution: Any) -> bool:
        return execution.status == Execution.Status.FAILED and bool(execution.has_successes)


class ExecutionProgressSerializer(serializers.Serializer[Any]):
    steps = serializers.IntegerField()
    ended = serializers.IntegerField(help_text="Number of steps that have ended.")


class PlannedStepSerializer(serializers.Serializer[Any]):
    line = serializers.IntegerField(help_text="The position of the step in the list of steps, starting at 0.")
    index = serializers.IntegerField(help_text="Steps with the same index run in parallel.")
    name = serializers.CharField()
    task = serializers.UUIDField(
        help_text="The id of the task. All attempts have the same task id, so other systems can use this id "
        "as an idempotency key."
    )
    step_type = serializers.CharField()
    config = serializers.DictField()
    pool = serializers.CharField()
    run_if = serializers.CharField()
    max_retries = serializers.IntegerField()
    state = serializers.CharField(
        help_text="`waiting`, `queued`, `processing` or `cancelling`. After the task has ended, the status "
        "of its last attempt."
    )
    wait_reason = serializers.CharField(
        help_text="Why the step is not running yet, or which worker is running the step. Empty if the step "
        "has ended."
    )
    reused = serializers.IntegerField(
        allow_null=True,
        help_text="In a retry, the id of the activity whose result was reused instead of running the step "
        "again. Otherwise null.",
    )
    attempts = AttemptSerializer(many=True)


class ExecutionDetailSerializer(ExecutionSerializer):
    on_failure = serializers.CharField(
        help_text="What happens to later steps if a step fails: `stop`, `continue` or `skip`."
    )
    progress = serializers.SerializerMethodField()
    steps = serializers.SerializerMethodField()

    class Meta(ExecutionSerializer.Meta):
        fields = (*ExecutionSerializer.Meta.fields, "on_failure", "progress", "steps")

    @extend_schema_field(ExecutionProgressSerializer)
    def get_progress(self, execution: Execution) -> dict[str, int]:
        steps = self._steps(execution)
        progress = ExecutionProgress.of(attempt for step in steps for attempt in step["attempts"])
        return {"steps": len(steps), "ended": progress.done}

    @extend_schema_field(PlannedStepSerializer(many=True))
    def get_steps(self, execution: Execution) -> Any:
        return PlannedStepSerializer(self._steps(execution), many=True).data

    def _steps(self, execution: Any) -> list[dict[str, Any]]:
        if not hasattr(execution, "steps_shown"):
            execution.steps_shown = steps_of(execution, now=clock.now())
        return list(execution.steps_shown)


def steps_of(execution: Execution, *, now: datetime) -> list[dict[str, Any]]:
    """Return the steps of an execution, each with its attempts and the reason why the step is waiting."""
    attempts: dict[int | None, list[Activity]] = defaultdict(list)
    rows = Activity.objects.filter(parent=execution.activity_id).defer("traceback", "result", "details")
    for activity in rows.order_by("line", "attempt")[:MOST_ATTEMPTS]:
        attempts[activity.line].append(activity)
    tasks = list(WorkerTask.objects.filter(execution=execution).select_related("worker"))
    for task in tasks:
        task.execution = execution
    by_line, why = {task.line: task for task in tasks}, reasons(tasks, now=now)
    lines = execution.plan["steps"] if isinstance(execution.plan, dict) else []
    return [_step(line, attempts[line["line"]], by_line.get(line["line"]), why) for line in lines]


COPIED = ("line", "index", "name", "step_type", "config", "pool", "run_if", "max_retries")


def _step(
    line: Mapping[str, Any], attempts: Sequence[Activity], task: WorkerTask | None, why: Mapping[int, str]
) -> dict[str, Any]:
    state = attempts[-1].status if attempts else Activity.Status.PENDING.value
    if task is not None:
        state = task.state
    return {
        **{name: line[name] for name in COPIED},
        "task": line["key"],
        "state": state,
        "wait_reason": why.get(task.pk, "") if task else "",
        "reused": line.get("reused"),
        "attempts": attempts,
    }


class NewExecution(Strict[Any]):
    name = serializers.CharField(max_length=200)
    steps = serializers.ListField(
        child=serializers.DictField(),
        help_text="The steps, with the same fields as the steps of a schedule. `name` is optional. A step "
        "with a `template` needs only those fields whose values differ from the template.",
    )
    mode = serializers.ChoiceField(
        choices=["sequential", "parallel", "steps"],
        default="steps",
        help_text="`sequential` runs the steps one after the other. `parallel` runs all steps in parallel. "
        "`steps` runs the steps in the order of their `index`; steps with the same index run in parallel.",
    )
    on_failure = serializers.CharField(
        default="stop", help_text="What to do with later steps if a step fails: `stop`, `continue` or `skip`."
    )
    timeout_seconds = serializers.IntegerField(
        min_value=1,
        allow_null=True,
        default=None,
        help_text="The time limit of the whole execution, in seconds. If null, the time is not limited.",
    )


class Reason(Strict[Any]):
    reason = serializers.CharField(
        max_length=1_000,
        allow_blank=True,
        default="",
        help_text="The reason for the action, which is kept in the history.",
    )


class RetryOptions(Strict[Any]):
    whole = serializers.BooleanField(
        default=False, help_text="Whether to run all steps again, including those that succeeded."
    )
    overlap = serializers.ChoiceField(
        choices=Overlap.choices,
        required=False,
        help_text="What to do if another execution of the schedule is running. The default is the overlap "
        "policy of the schedule.",
    )


class AcceptedExecutionSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(
        allow_null=True, help_text="The id of the execution. Null if the execution has not started yet."
    )
    state = serializers.CharField()
    url = serializers.URLField(
        help_text="The URL at which you can follow the execution. The Location header contains the same URL."
    )


class ExecutionFilters(Filters):
    schedule = WholeFilter(
        field_name="schedule_id", help_text="Return only executions of the schedule with this id."
    )
    state = filters.ChoiceFilter(
        choices=[(name, name) for name in (*STATES, "late", "partial")], method="in_state"
    )
    retry_of = WholeFilter(
        field_name="retry_of_id", help_text="Return only executions that retry the execution with this id."
    )
    source = filters.ChoiceFilter(choices=Occurrence.Source.choices)
    started_after = MomentFilter(field_name="started_at", lookup_expr="gte")
    started_before = MomentFilter(field_name="started_at", lookup_expr="lt")

    def in_state(self, rows: ExecutionQuerySet, name: str, value: str) -> ExecutionQuerySet:
        if value == "late":
            return rows.late(clock.now())
        return rows.partial() if value == "partial" else rows.filter(CONDITIONS[value])


class Executions(ListedResource):
    """List executions: runs of schedules and of job groups.

    A list that is filtered by `schedule` or `retry_of` is searched completely. With any other filter, except
    the states `in_progress`, `cancelling` and `late`, each page searches only a limited part of the history.
    Even a short or empty page can then have a `next` link.
    """

    queryset = Execution.objects.all()
    serializer_class = ExecutionSerializer
    filterset_class = ExecutionFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id",)
    pagination_class = HistoryPages
    history_range = HistoryRange("started_at", "started_after", "started_before", reach=20_000)
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        "create": RUN,
        "cancel": RUN,
        "terminate": RUN,
        "retry": RUN,
    }

    def scans_history(self) -> bool:
        given = set(self.request.query_params) - {"cursor", "limit"}
        if self.request.query_params.get("state") in RUNNING:
            given -= {"state"}
        return bool(given) and not given & {"schedule", "retry_of"}

    def get_queryset(self) -> Any:
        parts = Activity.objects.filter(parent=OuterRef("activity"), status__in=failure.SUCCEEDED)
        rows = Execution.objects.select_related("activity", "occurrence").defer(
            "last_result", "activity__result", "activity__details", "activity__traceback"
        )
        rows = rows.defer("plan") if self.action == "list" else rows
        return rows.annotate(has_successes=Exists(parts))

    def get_serializer_class(self) -> Any:
        return ExecutionDetailSerializer if self.action == "retrieve" else ExecutionSerializer

    @extend_schema(responses=ExecutionDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve an execution with its steps and their attempts."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=NewExecution, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedExecutionSerializer)
    )
    def create(self, request: Request) -> Response:
        """Run a group of jobs without a schedule."""
        read = self.read(NewExecution)
        submit = partial(Execution.objects.submit, **read, may=self.may, initiator=self.by, now=self.now)
        return self.once(lambda: self._accept(submit()))

    @extend_schema(request=Reason, responses=accepted(AcceptedExecutionSerializer))
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel an execution.

        Running steps are asked to stop. No further steps start, except clean-up steps (`run_if: always`).
        """
        execution, read = self.get_object(), self.read(Reason)
        if not execution.cancel(initiator=self.by, now=self.now, reason=read["reason"]):
            raise _already_ended(execution)
        return self._accept(self.get_object())

    @extend_schema(request=Reason, responses=accepted(AcceptedExecutionSerializer))
    @action(detail=True, methods=["post"])
    def terminate(self, request: Request, pk: str) -> Response:
        """Terminate an execution immediately, without clean-up.

        Running steps are stopped, and their results are lost.
        """
        execution, read = self.get_object(), self.read(Reason)
        if not execution.terminate(initiator=self.by, now=self.now, reason=read["reason"]):
            raise _already_ended(execution)
        return self._accept(self.get_object())

    @extend_schema(
        request=RetryOptions, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedExecutionSerializer)
    )
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Retry an execution that has ended.

        This starts a new execution for the same scheduled time. Steps that succeeded are not run again,
        except steps with `run_if: always`. With `whole`, all steps are run again.
        """
        execution, read = self.get_object(), self.read(RetryOptions)
        return self.once(lambda: self._retry(execution, read))

    def _retry(self, execution: Execution, read: dict[str, Any]) -> Response:
        started = execution.retry(initiator=self.by, now=self.now, **read)
        if started is not None:
            return self._accept(started)
        url = f"{reverse('api:execution-list')}?retry_of={execution.pk}"
        return self.accepted({"id": None, "state": "pending"}, url=url)

    def _accept(self, execution: Execution) -> Response:
        url = reverse("api:execution-detail", args=[execution.pk])
        return self.accepted({"id": execution.pk, "state": execution.state}, url=url)


def _already_ended(execution: Execution) -> Refused:
    return Refused(f"“{execution}” has already ended.")
