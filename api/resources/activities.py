"""Activities, with their output, items and children."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from activities.models import Activity, ActivityItem, ActivityQuerySet
from api.filtering import Filters, MomentFilter, TextFilter, WholeFilter
from api.paging import HistoryPages, HistoryRange
from api.permissions import can, check
from api.reading import Nothing
from api.schema import IDEMPOTENCY_KEY, accepted
from execution.models import Job
from schedules.models import Refused
from schedules.permissions import RUN

from . import attempt_output
from .attempts import AnyJson, InitiatorSerializer
from .base import ListedResource, Resource
from .tasks import QueuedJobSerializer, accept_task

VIEW = "activities.view_activity"
MOST_LINES = 10_000
USUAL_LINES = 1_000
# Filters that use an index, regardless of the other filters.
INDEXED = {"target", "task", "parent"}


class ActivityTargetSerializer(serializers.Serializer[Activity]):
    type = serializers.CharField(source="target_type")
    id = serializers.CharField(source="target_id")
    name = serializers.CharField(source="target_name")


class ActivitySerializer(serializers.ModelSerializer[Activity]):
    target = ActivityTargetSerializer(source="*", help_text="The object that was run or changed.")
    initiator = InitiatorSerializer(source="*", help_text="Who or what requested the run or the change.")
    parent = serializers.IntegerField(  # type: ignore[assignment]
        source="parent_id",
        allow_null=True,
        help_text="The id of the parent activity. For an attempt of a step, the parent is the activity of "
        "the execution.",
    )
    retry_of = serializers.IntegerField(
        source="retry_of_id",
        allow_null=True,
        help_text="The id of the activity of the previous attempt. Null if this activity is not a retry.",
    )
    task = serializers.UUIDField(
        source="task_key",
        allow_null=True,
        help_text="The id of the task that was attempted. Null if the activity is not an attempt.",
    )

    class Meta:
        model = Activity
        fields: tuple[str, ...] = (
            "id",
            "status",
            "operation",
            "target",
            "initiator",
            "parent",
            "task",
            "attempt",
            "retry_of",
            "step_index",
            "worker_id",
            "created_at",
            "executed_at",
            "finished_at",
            "progress_done",
            "progress_total",
            "message",
            "error",
            "permanently_failed",
            "items_total",
            "items_failed",
        )
        read_only_fields: tuple[str, ...] = fields
        extra_kwargs = {
            "operation": {
                "help_text": "`run` for an attempt or an execution, otherwise the kind of change, such as "
                "`edit`."
            }
        }


class ActivityDetailSerializer(ActivitySerializer):
    result = AnyJson(help_text="The value that the step returned.")
    details = AnyJson(help_text="Additional data. For an edit, the values before and after the edit.")

    class Meta(ActivitySerializer.Meta):
        fields = (*ActivitySerializer.Meta.fields, "result", "traceback", "details")
        read_only_fields: tuple[str, ...] = fields


class ActivityFilters(Filters):
    status = filters.ChoiceFilter(choices=Activity.Status.choices)
    operation = TextFilter(
        help_text="Return only activities with this operation, such as `run`, `edit` or `pause`."
    )
    target = TextFilter(
        method="of_target",
        help_text="Return only changes and executions of this object, not attempts. Enter the object as a "
        "type and an id, such as `schedule:12`.",
    )
    initiator = TextFilter(
        method="of_initiator",
        help_text="Return only activities of this initiator. Enter the initiator as a type and an id, such "
        "as `user:7`, or only as a type, such as `system`.",
    )
    task = filters.UUIDFilter(
        field_name="task_key", help_text="Return only the attempts of the task with this id."
    )
    parent = WholeFilter(
        field_name="parent_id", help_text="Return only the children of the activity with this id."
    )
    text = TextFilter(
        field_name="target_name",
        lookup_expr="icontains",
        help_text="Return only activities whose target has a name that contains this text.",
    )
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    def of_target(self, rows: Any, name: str, value: str) -> Any:
        kind, separator, pk = value.partition(":")
        if not separator:
            raise ValidationError({name: "Enter a type and an id, such as schedule:12."})
        return rows.filter(task_key=None, target_type=kind, target_id=pk)

    def of_initiator(self, rows: Any, name: str, value: str) -> Any:
        kind, _, pk = value.partition(":")
        return rows.filter(initiator_type=kind, **({"initiator_id": pk} if pk else {}))


class OutputLineSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    stream = serializers.CharField()
    text = serializers.CharField()
    written_at = serializers.DateTimeField()


class OutputSerializer(serializers.Serializer[Any]):
    lines = OutputLineSerializer(many=True)
    after = serializers.IntegerField(
        help_text="The number of the last line. To get the following lines, send this number in the "
        "parameter `after`."
    )
    has_more = serializers.BooleanField(help_text="Whether more lines after these already exist.")
    is_final = serializers.BooleanField(
        help_text="Whether the attempt has ended, so that no more lines will be written."
    )


class OutputQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(min_value=0, max_value=2**31 - 1, default=0)
    limit = serializers.IntegerField(min_value=1, max_value=MOST_LINES, default=USUAL_LINES)
    follow = serializers.BooleanField(default=False)
    form = serializers.ChoiceField(choices=["json", "text", "ndjson"], required=False)


OUTPUT_PARAMETERS = [
    OpenApiParameter(
        "after", OpenApiTypes.INT, description="Return only lines after the line with this number."
    ),
    OpenApiParameter(
        "limit",
        OpenApiTypes.INT,
        description=f"The maximum number of lines to return. The default is {USUAL_LINES:,}.",
    ),
    OpenApiParameter(
        "follow",
        OpenApiTypes.BOOL,
        description="Stream the output, as `text` or `ndjson`, until the attempt ends, but for at most ten "
        "minutes. The stream also ends if you lose the permission to read the output.",
    ),
    OpenApiParameter(
        "form",
        enum=["json", "text", "ndjson"],
        description="The format of the output. The default is `json`, or `text` if `follow` is true.",
    ),
]


class Activities(ListedResource):
    """List activities: attempts of steps and jobs, executions, and changes.

    A list that is filtered by `target`, `task` or `parent` is searched completely. With any other filter,
    except `status=pending` and `status=in_progress`, each page searches only a limited part of the history.
    Even a short or empty page can then have a `next` link.
    """

    queryset = Activity.objects.all()
    serializer_class = ActivitySerializer
    filterset_class = ActivityFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id",)
    pagination_class = HistoryPages
    history_range = HistoryRange("created_at", "created_after", "created_before", reach=50_000)
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"output": ("after", "limit", "follow", "form")}
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        "output": attempt_output.VIEW_OUTPUT,
        "retry": RUN,
    }

    def scans_history(self) -> bool:
        given = set(self.request.query_params) - {"cursor", "limit"}
        if self.request.query_params.get("status") in Activity.OPEN:
            given -= {"status"}
        return bool(given) and not given & INDEXED

    def get_queryset(self) -> Any:
        rows = _visible_activities(self.request)
        return rows.defer("traceback", "result", "details") if self.action == "list" else rows

    def get_serializer_class(self) -> Any:
        return ActivityDetailSerializer if self.action == "retrieve" else ActivitySerializer

    @extend_schema(responses=ActivityDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve an activity with its result."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        parameters=OUTPUT_PARAMETERS,
        responses={
            (200, "application/json"): OutputSerializer,
            (200, "text/plain"): OpenApiResponse(OpenApiTypes.STR),
            (200, "application/x-ndjson"): OpenApiResponse(
                OpenApiTypes.STR, "One JSON object for each line of the output."
            ),
        },
        filters=False,
    )
    @action(detail=True, methods=["get"])
    def output(self, request: Request, pk: str) -> HttpResponseBase:
        """Read or follow the output of an attempt."""
        query = self._output_query()
        activity = _visible_activities(request).filter(pk=pk).only("pk", "status").first()
        if activity is None:
            raise NotFound(f"Activity {pk} was not found.")
        form = query.get("form") or ("text" if query["follow"] else "json")
        if query["follow"]:
            if form == "json":
                raise ValidationError(
                    {"form": "“json” is not available together with “follow”. Choose “text” or “ndjson”."}
                )
            return attempt_output.stream(activity.pk, after=query["after"], form=form, request=request)
        page = attempt_output.page(activity.pk, after=query["after"], limit=query["limit"])
        if form == "json":
            return Response(OutputSerializer(page).data)
        content = "".join(attempt_output.formatted(line, form) for line in page.lines)
        return HttpResponse(content, content_type=attempt_output.CONTENT_TYPES[form])

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepted(QueuedJobSerializer))
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Retry a single job that failed or was cancelled."""
        activity, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: self._retry(activity))

    def _retry(self, activity: Activity) -> Response:
        job = Job.find(activity.task_key) if activity.task_key else None
        if job is None:
            advice = " Retry the execution instead." if activity.operation == Activity.RUN else ""
            raise Refused(
                f"Only single jobs can be retried here. “{activity.target_name}” is not a single job.{advice}"
            )
        job.retry(initiator=self.by, now=self.now)
        return accept_task(self, job.key)

    def _output_query(self) -> dict[str, Any]:
        query = OutputQuery(data=self.request.query_params.dict())
        query.is_valid(raise_exception=True)
        return dict(query.validated_data)


def _visible_activities(request: Request) -> ActivityQuerySet:
    return Activity.objects.seen_by(lambda permission: can(request, permission))


class ActivityResource(mixins.ListModelMixin, Resource, ABC):
    """A list of objects that belong to one activity."""

    @abstractmethod
    def rows(self, activity: int) -> Any: ...

    def get_queryset(self) -> Any:
        pk = int(self.kwargs.get("activity", 0))
        if self.kwargs and not _visible_activities(self.request).filter(pk=pk).exists():
            raise NotFound(f"Activity {pk} was not found.")
        return self.rows(pk)


class Children(ActivityResource):
    """List the children of an activity.

    The children of an execution are the attempts of its steps.
    """

    queryset = Activity.objects.all()
    serializer_class = ActivitySerializer
    orderings = ("id", "-id")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW}

    def rows(self, activity: int) -> Any:
        return Activity.objects.filter(parent=activity).defer("traceback", "result", "details")


class ActivityItemSerializer(serializers.ModelSerializer[ActivityItem]):
    data = AnyJson(help_text=ActivityItem._meta.get_field("data").help_text)  # type: ignore[assignment]

    class Meta:
        model = ActivityItem
        fields = (
            "id",
            "name",
            "outcome",
            "change",
            "error_type",
            "object",
            "external_id",
            "message",
            "data",
            "created_at",
        )
        read_only_fields = fields


class ItemFilters(Filters):
    outcome = filters.ChoiceFilter(choices=ActivityItem.Outcome.choices)
    change = TextFilter(help_text="Return only items of objects to which this happened, such as `updated`.")
    error_type = TextFilter(help_text="Return only items with this kind of error, such as `bad_value`.")


class Items(ActivityResource):
    """List the items of an attempt: the objects that the step processed, each with its outcome.

    The items of some step types are personal data, for which another permission is needed.
    """

    queryset = ActivityItem.objects.all()
    serializer_class = ActivityItemSerializer
    filterset_class = ItemFilters
    orderings = ("id", "-id")
    needs: ClassVar[Mapping[str, str]] = {"list": "activities.view_activityitem"}

    def rows(self, activity: int) -> Any:
        of = Activity.objects.filter(pk=activity)
        for permission in of.lacking_for_items(lambda permission: can(self.request, permission)):
            check(self.request, permission)
        return ActivityItem.objects.filter(activity=activity)
