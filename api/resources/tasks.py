from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.http import Http404
from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities.models import Activity
from api.errors import said
from api.filtering import Filters, TextFilter, WholeFilter
from api.reading import Nothing, Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, accepts, acts, changes, reads
from api.versions import digest_of
from execution.models import Execution, Job, WorkerTask
from execution.models.adhoc import first_wrong, named
from execution.models.task import MOST_PRIORITY
from execution.queue.waits import reasons
from schedules.models import Refused
from schedules.permissions import RUN, NotYours

from .attempts import AnyJson, AttemptSerializer
from .base import Listed, Resource
from .executions import Reason
from .jobs import JobWriting

MOST_JOBS = 1_000
VIEW = "execution.view_workertask"
STARTED = "has been started meanwhile, or has ended"


class TaskSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="key", help_text="Its id for life, and its idempotency key.")
    name = serializers.CharField()
    step_type = serializers.CharField(source="step.step_type", default="")
    state = serializers.CharField(
        help_text="`waiting`, `queued`, `processing`, `cancelling`; then the status of its last attempt."
    )
    wait_reason = serializers.CharField(help_text="Why it does not run yet, or who runs it.")
    execution = serializers.IntegerField(
        source="execution_id", allow_null=True, help_text="None: it is a single job."
    )
    pool = serializers.CharField()
    priority = serializers.IntegerField()
    position = serializers.IntegerField()
    attempt = serializers.IntegerField()
    available_at = serializers.DateTimeField(help_text="Since when, or from when on, it may start.")
    created_at = serializers.DateTimeField()
    claimed_at = serializers.DateTimeField(allow_null=True)
    worker = serializers.UUIDField(source="worker_id", allow_null=True)
    activity = serializers.IntegerField(source="activity_id", help_text="The record of its last attempt.")


class TaskDetailSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="key")
    name = serializers.CharField(source="last.target_name")
    state = serializers.CharField()
    is_final = serializers.BooleanField(source="last.is_final")
    wait_reason = serializers.CharField()
    execution = serializers.IntegerField(allow_null=True, help_text="None: it is a single job.")
    queued = TaskSerializer(allow_null=True, help_text="Its place in the queue; none once it has ended.")
    message = serializers.CharField(source="last.message")
    error = serializers.CharField(source="last.error")
    result = AnyJson(source="last.result")
    attempts = AttemptSerializer(many=True)


class Found:
    """A task by the id that it keeps for life: while it is queued with its row, and then without."""

    def __init__(self, key: uuid.UUID) -> None:
        self.key = key
        self.attempts = list(Activity.objects.filter(task_key=key).order_by("attempt"))
        if not self.attempts:
            raise Http404(f"There is no task {key}.")
        rows = WorkerTask.objects.select_related("worker", "execution").defer("execution__plan")
        self.queued: Any = rows.filter(activity__task_key=key).first()
        self.execution = self._execution()

    @property
    def last(self) -> Activity:
        return self.attempts[-1]

    @property
    def state(self) -> str:
        return str(self.queued.state if self.queued else self.last.status)

    def say_why(self, now: datetime) -> Found:
        _say_why([self.queued] if self.queued else [], now)
        return self

    @property
    def wait_reason(self) -> str:
        return self.queued.wait_reason if self.queued else ""

    def _execution(self) -> int | None:
        if self.queued is not None or self.last.parent_id is None:
            return self.queued.execution_id if self.queued else None
        parents = Execution.objects.filter(activity=self.last.parent_id)
        return parents.values_list("pk", flat=True).first()


class JobsDefinition(Strict[Any]):
    jobs = serializers.ListField(child=JobWriting(), min_length=1, max_length=MOST_JOBS)


class TaskWriting(Strict[Any]):
    priority = serializers.IntegerField(min_value=-MOST_PRIORITY, max_value=MOST_PRIORITY)


class Order(Strict[Any]):
    ids = serializers.ListField(
        child=serializers.UUIDField(), min_length=1, max_length=MOST_JOBS, help_text="The first goes first."
    )


class ReorderedSerializer(serializers.Serializer[Any]):
    moved = serializers.IntegerField(help_text="How many of them have not started yet.")


class QueuedSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    state = serializers.CharField()
    url = serializers.URLField()


class QueuedJobsSerializer(serializers.Serializer[Any]):
    ids = serializers.ListField(child=serializers.UUIDField(), help_text="In the order of the request.")
    url = serializers.URLField()


class TaskFilters(Filters):
    pool = TextFilter()
    status = filters.ChoiceFilter(choices=WorkerTask.Status.choices)
    execution = WholeFilter(field_name="execution_id", help_text="The id of an execution.")
    worker = filters.UUIDFilter(field_name="worker_id")


class Tasks(Listed):
    """The queue: steps of executions and single jobs, from their first attempt to the end of their last."""

    queryset = WorkerTask.objects.all()
    serializer_class = TaskSerializer
    filterset_class = TaskFilters
    lookup_field, lookup_url_kwarg, lookup_value_regex = "key", "id", "[0-9a-fA-F-]{36}"
    orderings = ("id", "-id")
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        **dict.fromkeys(("create", "batch", "partial_update", "reorder"), RUN),
        **dict.fromkeys(("front", "back", "hasten", "cancel", "retry"), RUN),
    }

    def get_queryset(self) -> Any:
        return WorkerTask.objects.select_related("worker", "execution").defer("execution__plan")

    def paginate_queryset(self, queryset: Any) -> Any:
        rows = super().paginate_queryset(queryset)
        _say_why(rows or [], self.now)
        return rows

    def get_serializer_class(self) -> Any:
        return TaskSerializer if self.action == "list" else TaskDetailSerializer

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(TaskDetailSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One task, by the id that it keeps for life: its place in the queue, its attempts, its result."""
        return self._shown(self._found())

    @extend_schema(request=JobWriting, parameters=[IDEMPOTENCY_KEY], responses=accepts(QueuedSerializer))
    def create(self, request: Request) -> Response:
        """Queues one job."""
        wanted = [named(self.read(JobWriting))]
        return self.once(lambda: self._queue(wanted))

    def _queue(self, wanted: list[dict[str, Any]]) -> Response:
        [key] = WorkerTask.objects.enqueue(wanted, may=self.may, initiator=self.by, now=self.now)
        return accept_task(self, key)

    @extend_schema(
        request=JobsDefinition, parameters=[IDEMPOTENCY_KEY], responses=accepts(QueuedJobsSerializer)
    )
    @action(detail=False, methods=["post"])
    def batch(self, request: Request) -> Response:
        """Queues several jobs at once, or none of them."""
        wanted = [named(job) for job in self.read(JobsDefinition)["jobs"]]
        return self.once(lambda: self._queue_all(wanted))

    def _queue_all(self, wanted: list[dict[str, Any]]) -> Response:
        try:
            keys = WorkerTask.objects.enqueue(wanted, may=self.may, initiator=self.by, now=self.now)
        except NotYours:
            raise
        except ValidationError:
            self._blame(wanted)
            raise
        return self.accepted({"ids": [str(key) for key in keys]}, url=reverse("api:task-list"))

    @extend_schema(request=TaskWriting, parameters=[IF_MATCH], responses=changes(TaskDetailSerializer))
    def partial_update(self, request: Request, id: str) -> Response:
        """Among what waits in a pool, the highest priority goes first."""
        read, found = self.read(TaskWriting), self._found()
        self.match(self._version(found))
        return self._change(found, lambda task, **by: task.prioritise(read["priority"], **by))

    @extend_schema(request=Nothing, responses=acts(TaskDetailSerializer))
    @action(detail=True, methods=["post"])
    def front(self, request: Request, id: str) -> Response:
        """It goes before all others of its pool and priority."""
        self.read(Nothing)
        return self._change(self._found(), WorkerTask.move_to_front)

    @extend_schema(request=Nothing, responses=acts(TaskDetailSerializer))
    @action(detail=True, methods=["post"])
    def back(self, request: Request, id: str) -> Response:
        """It goes after all others of its pool and priority that are there now."""
        self.read(Nothing)
        return self._change(self._found(), WorkerTask.move_to_back)

    @extend_schema(request=Nothing, responses=acts(TaskDetailSerializer))
    @action(detail=True, methods=["post"])
    def hasten(self, request: Request, id: str) -> Response:
        """Ends the delay before a retry, or the wait for the time that it was queued for."""
        self.read(Nothing)
        return self._change(self._found(), WorkerTask.hasten, why="does not wait for a time")

    @extend_schema(request=Order, responses=acts(ReorderedSerializer))
    @action(detail=False, methods=["post"])
    def reorder(self, request: Request) -> Response:
        """These go first, in this order, among what waits in their pool with the same priority."""
        ids = self.read(Order)["ids"]
        return Response({"moved": WorkerTask.objects.reorder(ids, initiator=self.by, now=self.now)})

    @extend_schema(request=Reason, responses=accepts(QueuedSerializer))
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, id: str) -> Response:
        """Of a single job: before it starts at once; while it runs, it is asked to stop."""
        job, read = self._job(), self.read(Reason)
        if not job.cancel(initiator=self.by, now=self.now, reason=read["reason"]):
            raise Refused(f"“{job.activity.target_name}” has ended already.")
        return accept_task(self, job.key)

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepts(QueuedSerializer))
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, id: str) -> Response:
        """One more attempt of a single job that failed or was cancelled."""
        self.read(Nothing)
        return self.once(self._retry)

    def _retry(self) -> Response:
        job = self._job()
        job.retry(initiator=self.by, now=self.now)
        return accept_task(self, job.key)

    def _blame(self, jobs: list[dict[str, Any]]) -> None:
        """Raises the same about the job that it is about."""
        if wrong := first_wrong(jobs, initiator=self.by, now=self.now):
            number, error = wrong
            raise serializers.ValidationError({"jobs": {str(number): said(error)}}) from error

    def _change(
        self,
        found: Found,
        verb: Callable[..., bool],
        *,
        why: str = "has been started meanwhile, or has ended",
    ) -> Response:
        if found.queued is None or not verb(found.queued, initiator=self.by, now=self.now):
            raise Refused(f"“{found.last.target_name}” {why}: nothing was changed.")
        return self._shown(self._found())

    def _shown(self, found: Found) -> Response:
        return self.shown(found.say_why(self.now), version=self._version(found))

    def _version(self, found: Found) -> str:
        place = (found.queued.priority, found.queued.position) if found.queued else None
        return digest_of([found.state, len(found.attempts), place])

    def _found(self) -> Found:
        return Found(self._key())

    def _job(self) -> Job:
        key = self._key()
        job = Job.find(key)
        if job is None:
            execution = Found(key).execution
            raise Refused(f"This task is a step of execution {execution}: cancel or retry that.")
        return job

    def _key(self) -> uuid.UUID:
        try:
            return uuid.UUID(self.kwargs["id"])
        except ValueError:
            raise Http404("This is no id of a task.") from None


def accept_task(view: Resource, key: uuid.UUID) -> Response:
    job = Job.find(key)
    body = {"id": str(key), "state": job.state if job else ""}
    return view.accepted(body, url=reverse("api:task-detail", args=[key]))


def _say_why(tasks: list[Any], now: datetime) -> None:
    why = reasons(tasks, now=now)
    for task in tasks:
        task.wait_reason = why.get(task.pk, "")
