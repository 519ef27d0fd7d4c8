"""The queue of tasks: steps of executions and single jobs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities.models import Activity
from api.errors import errors_by_field
from api.filtering import Filters, TextFilter, WholeFilter
from api.reading import Nothing, Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, accepted, performed, retrieved, updated
from api.versions import digest_of
from execution.models import Execution, Job, WorkerTask
from execution.models.adhoc import first_wrong, named
from execution.models.task import MOST_PRIORITY
from execution.queue.waits import reasons
from schedules.models import Refused
from schedules.permissions import RUN, NotYours

from .attempts import AnyJson, AttemptSerializer
from .base import ListedResource, Resource
from .executions import Reason
from .jobs import NewJob

MOST_JOBS = 1_000
VIEW = "execution.view_workertask"


class TaskSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(
        source="key",
        help_text="The id of the task. All attempts have the same task id, so other systems can use this id "
        "as an idempotency key.",
    )
    name = serializers.CharField()
    step_type = serializers.CharField(source="step.step_type", default="")
    state = serializers.CharField(
        help_text="`waiting`, `queued`, `processing` or `cancelling`. After the task has ended, the status "
        "of its last attempt."
    )
    wait_reason = serializers.CharField(
        help_text="Why the task is not running yet, or which worker is running the task."
    )
    execution = serializers.IntegerField(
        source="execution_id",
        allow_null=True,
        help_text="The id of the execution that this task belongs to. Null for a single job, "
        "which was queued outside any execution.",
    )
    pool = serializers.CharField()
    priority = serializers.IntegerField()
    position = serializers.IntegerField()
    attempt = serializers.IntegerField()
    available_at = serializers.DateTimeField(help_text="The earliest time at which the task can start.")
    created_at = serializers.DateTimeField()
    claimed_at = serializers.DateTimeField(allow_null=True)
    worker = serializers.UUIDField(source="worker_id", allow_null=True)
    activity = serializers.IntegerField(
        source="activity_id", help_text="The id of the activity that records the last attempt."
    )


class TaskDetailSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="key")
    name = serializers.CharField(source="last.target_name")
    state = serializers.CharField()
    is_final = serializers.BooleanField(source="last.is_final")
    wait_reason = serializers.CharField()
    execution = serializers.IntegerField(
        allow_null=True,
        help_text="The id of the execution that this task belongs to. Null for a single job, "
        "which was queued outside any execution.",
    )
    queued = TaskSerializer(
        allow_null=True, help_text="The entry of the task in the queue. Null if the task has ended."
    )
    message = serializers.CharField(source="last.message")
    error = serializers.CharField(source="last.error")
    result = AnyJson(source="last.result")
    attempts = AttemptSerializer(many=True)


class TaskRecord:
    """A task with its attempts and, until the task ends, its entry in the queue."""

    def __init__(self, key: uuid.UUID) -> None:
        self.key = key
        self.attempts = list(Activity.objects.filter(task_key=key).order_by("attempt"))
        if not self.attempts:
            raise NotFound(f"Task {key} was not found.")
        rows = WorkerTask.objects.select_related("worker", "execution").defer("execution__plan")
        self.queued: Any = rows.filter(activity__task_key=key).first()
        self.execution = self._execution()

    @property
    def last(self) -> Activity:
        return self.attempts[-1]

    @property
    def state(self) -> str:
        return str(self.queued.state if self.queued else self.last.status)

    def with_wait_reason(self, now: datetime) -> TaskRecord:
        _add_wait_reasons([self.queued] if self.queued else [], now)
        return self

    @property
    def wait_reason(self) -> str:
        return self.queued.wait_reason if self.queued else ""

    def _execution(self) -> int | None:
        if self.queued is not None or self.last.parent_id is None:
            return self.queued.execution_id if self.queued else None
        parents = Execution.objects.filter(activity=self.last.parent_id)
        return parents.values_list("pk", flat=True).first()


class NewJobs(Strict[Any]):
    jobs = serializers.ListField(child=NewJob(), min_length=1, max_length=MOST_JOBS)


class TaskUpdate(Strict[Any]):
    priority = serializers.IntegerField(min_value=-MOST_PRIORITY, max_value=MOST_PRIORITY)


class TaskOrder(Strict[Any]):
    ids = serializers.ListField(
        child=serializers.UUIDField(),
        min_length=1,
        max_length=MOST_JOBS,
        help_text="The ids of the tasks in the order in which they should start.",
    )


class ReorderResultSerializer(serializers.Serializer[Any]):
    moved = serializers.IntegerField(
        help_text="Number of tasks that were moved. Tasks that have already started are not moved."
    )


class QueuedJobSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField(help_text="The id of the task.")
    state = serializers.CharField()
    url = serializers.URLField(
        help_text="The URL at which you can follow the task. The Location header contains the same URL."
    )


class QueuedJobsSerializer(serializers.Serializer[Any]):
    ids = serializers.ListField(
        child=serializers.UUIDField(),
        help_text="The ids of the tasks, in the same order as the jobs in the request.",
    )
    url = serializers.URLField()


class TaskFilters(Filters):
    pool = TextFilter()
    status = filters.ChoiceFilter(choices=WorkerTask.Status.choices)
    execution = WholeFilter(
        field_name="execution_id", help_text="Return only tasks of the execution with this id."
    )
    worker = filters.UUIDFilter(field_name="worker_id")


class Tasks(ListedResource):
    """List the tasks in the queue: steps of executions and single jobs that have not ended."""

    queryset = WorkerTask.objects.all()
    serializer_class, row_class = TaskDetailSerializer, TaskSerializer
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
        _add_wait_reasons(rows or [], self.now)
        return rows

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(TaskDetailSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a task with its attempts and result.

        You can also retrieve a task that has ended and is no longer in the queue.
        """
        return self._respond_with_task(self._record())

    @extend_schema(request=NewJob, parameters=[IDEMPOTENCY_KEY], responses=accepted(QueuedJobSerializer))
    def create(self, request: Request) -> Response:
        """Queue a job."""
        jobs = [named(self.read(NewJob))]
        return self.once(lambda: self._queue(jobs))

    def _queue(self, jobs: list[dict[str, Any]]) -> Response:
        [key] = WorkerTask.objects.enqueue(jobs, may=self.may, initiator=self.by, now=self.now)
        return accept_task(self, key)

    @extend_schema(request=NewJobs, parameters=[IDEMPOTENCY_KEY], responses=accepted(QueuedJobsSerializer))
    @action(detail=False, methods=["post"])
    def batch(self, request: Request) -> Response:
        """Queue several jobs at once.

        If one job is invalid, no job is queued.
        """
        jobs = [named(job) for job in self.read(NewJobs)["jobs"]]
        return self.once(lambda: self._queue_all(jobs))

    def _queue_all(self, jobs: list[dict[str, Any]]) -> Response:
        try:
            keys = WorkerTask.objects.enqueue(jobs, may=self.may, initiator=self.by, now=self.now)
        except NotYours:
            raise
        except ValidationError:
            self._raise_for_job(jobs)
            raise
        return self.accepted({"ids": [str(key) for key in keys]}, url=reverse("api:task-list"))

    @extend_schema(request=TaskUpdate, parameters=[IF_MATCH], responses=updated(TaskDetailSerializer))
    def partial_update(self, request: Request, id: str) -> Response:
        """Change the priority of a task.

        In each pool, tasks with a higher priority start first.
        """
        read, record = self.read(TaskUpdate), self._record()
        self.check_version(self._version(record))
        return self._change(record, lambda task, **by: task.prioritise(read["priority"], **by))

    @extend_schema(request=Nothing, responses=performed(TaskDetailSerializer))
    @action(detail=True, methods=["post"])
    def front(self, request: Request, id: str) -> Response:
        """Move a task ahead of all other tasks in the same pool with the same priority."""
        self.read(Nothing)
        return self._change(self._record(), WorkerTask.move_to_front)

    @extend_schema(request=Nothing, responses=performed(TaskDetailSerializer))
    @action(detail=True, methods=["post"])
    def back(self, request: Request, id: str) -> Response:
        """Move a task behind all other tasks in the same pool with the same priority."""
        self.read(Nothing)
        return self._change(self._record(), WorkerTask.move_to_back)

    @extend_schema(request=Nothing, responses=performed(TaskDetailSerializer))
    @action(detail=True, methods=["post"])
    def hasten(self, request: Request, id: str) -> Response:
        """Let a delayed task start now.

        This ends the delay before a retry, or the wait for `available_at`.
        """
        self.read(Nothing)
        return self._change(self._record(), WorkerTask.hasten, why="is not delayed")

    @extend_schema(request=TaskOrder, responses=performed(ReorderResultSerializer))
    @action(detail=False, methods=["post"])
    def reorder(self, request: Request) -> Response:
        """Move tasks, in the given order, ahead of all others in the same pool with the same priority.

        All tasks in the request must be in the same pool and have the same priority.
        """
        ids = self.read(TaskOrder)["ids"]
        return Response({"moved": WorkerTask.objects.reorder(ids, initiator=self.by, now=self.now)})

    @extend_schema(request=Reason, responses=accepted(QueuedJobSerializer))
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, id: str) -> Response:
        """Cancel a single job.

        A queued job is cancelled immediately. A running job is asked to stop.
        """
        job, read = self._job(), self.read(Reason)
        if not job.cancel(initiator=self.by, now=self.now, reason=read["reason"]):
            raise Refused(f"“{job.activity.target_name}” has already ended.")
        return accept_task(self, job.key)

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepted(QueuedJobSerializer))
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, id: str) -> Response:
        """Retry a single job that failed or was cancelled."""
        self.read(Nothing)
        return self.once(self._retry)

    def _retry(self) -> Response:
        job = self._job()
        job.retry(initiator=self.by, now=self.now)
        return accept_task(self, job.key)

    def _raise_for_job(self, jobs: list[dict[str, Any]]) -> None:
        """If a job is invalid, raise the errors of the first invalid job, with its position in the list."""
        if wrong := first_wrong(jobs, initiator=self.by, now=self.now):
            number, error = wrong
            raise serializers.ValidationError({"jobs": {str(number): errors_by_field(error)}}) from error

    def _change(
        self,
        record: TaskRecord,
        verb: Callable[..., bool],
        *,
        why: str = "has already started or ended",
    ) -> Response:
        if record.queued is None or not verb(record.queued, initiator=self.by, now=self.now):
            raise Refused(f"“{record.last.target_name}” {why}. Nothing was changed.")
        return self._respond_with_task(self._record())

    def _respond_with_task(self, record: TaskRecord) -> Response:
        return self.respond_with(record.with_wait_reason(self.now), version=self._version(record))

    def _version(self, record: TaskRecord) -> str:
        place = (record.queued.priority, record.queued.position) if record.queued else None
        return digest_of([record.state, len(record.attempts), place])

    def _record(self) -> TaskRecord:
        return TaskRecord(self._key())

    def _job(self) -> Job:
        key = self._key()
        job = Job.find(key)
        if job is None:
            execution = TaskRecord(key).execution
            raise Refused(
                f"This task is a step of execution {execution}. Cancel or retry the execution instead."
            )
        return job

    def _key(self) -> uuid.UUID:
        try:
            return uuid.UUID(self.kwargs["id"])
        except ValueError:
            raise NotFound("The task id is not a valid UUID.") from None


def accept_task(view: Resource, key: uuid.UUID) -> Response:
    job = Job.find(key)
    body = {"id": str(key), "state": job.state if job else ""}
    return view.accepted(body, url=reverse("api:task-detail", args=[key]))


def _add_wait_reasons(tasks: list[Any], now: datetime) -> None:
    why = reasons(tasks, now=now)
    for task in tasks:
        task.wait_reason = why.get(task.pk, "")
