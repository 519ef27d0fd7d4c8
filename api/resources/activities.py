from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from activities.models import Activity, ActivityItem, ActivityQuerySet
from api.filtering import Filters, MomentFilter, TextFilter, WholeFilter
from api.looking_back import PartByPart, Times
from api.permissions import can
from api.reading import Nothing
from api.schema import IDEMPOTENCY_KEY, accepts
from execution.models import Job
from schedules.models import Refused
from schedules.permissions import RUN

from . import following
from .attempts import AnyJson, InitiatorSerializer
from .base import Listed, Resource
from .tasks import QueuedSerializer, accept_task

VIEW = "activities.view_activity"
MOST_LINES = 10_000
USUAL_LINES = 1_000
# Filters that an index answers, whatever else is asked for.
INDEXED = {"target", "task", "parent"}


class TargetSerializer(serializers.Serializer[Activity]):
    type = serializers.CharField(source="target_type")
    id = serializers.CharField(source="target_id")
    name = serializers.CharField(source="target_name")


class ActivitySerializer(serializers.ModelSerializer[Activity]):
    target = TargetSerializer(source="*", help_text="What was run or changed.")
    initiator = InitiatorSerializer(source="*", help_text="Who asked for it.")
    parent = serializers.IntegerField(source="parent_id", allow_null=True)  # type: ignore[assignment]
    retry_of = serializers.IntegerField(source="retry_of_id", allow_null=True)
    task = serializers.UUIDField(source="task_key", allow_null=True)

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
        extra_kwargs = {"operation": {"help_text": "`run` is an attempt; others are changes."}}


class ActivityDetailSerializer(ActivitySerializer):
    result = AnyJson()
    details = AnyJson(help_text="Of a change: what was before, and what is after.")

    class Meta(ActivitySerializer.Meta):
        fields = (*ActivitySerializer.Meta.fields, "result", "traceback", "details")
        read_only_fields: tuple[str, ...] = fields


class ActivityFilters(Filters):
    status = filters.ChoiceFilter(choices=Activity.Status.choices)
    operation = TextFilter(help_text="Such as `run`, `edit`, `pause`.")
    target = TextFilter(
        method="of_target", help_text="Changes and executions of it, such as `schedule:12`; no attempts."
    )
    initiator = TextFilter(method="of_initiator", help_text="Such as `user:7` or `system`.")
    task = filters.UUIDFilter(field_name="task_key", help_text="All attempts of this task.")
    parent = WholeFilter(field_name="parent_id", help_text="The parts of this activity.")
    text = TextFilter(field_name="target_name", lookup_expr="icontains", help_text="In its name.")
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    def of_target(self, rows: Any, name: str, value: str) -> Any:
        kind, separator, pk = value.partition(":")
        if not separator:
            raise ValidationError({name: "A type and an id are expected, such as schedule:12."})
        return rows.filter(task_key=None, target_type=kind, target_id=pk)

    def of_initiator(self, rows: Any, name: str, value: str) -> Any:
        kind, _, pk = value.partition(":")
        return rows.filter(initiator_type=kind, **({"initiator_id": pk} if pk else {}))


class LineSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    stream = serializers.CharField()
    text = serializers.CharField()
    written_at = serializers.DateTimeField()


class OutputSerializer(serializers.Serializer[Any]):
    lines = LineSerializer(many=True)
    after = serializers.IntegerField(help_text="The number of the last line: ask for what comes after it.")
    has_more = serializers.BooleanField(help_text="There are more lines already.")
    is_final = serializers.BooleanField(help_text="The attempt has ended: nothing more will be written.")


class OutputQuery(serializers.Serializer[Any]):
    after = serializers.IntegerField(min_value=0, max_value=2**31 - 1, default=0)
    limit = serializers.IntegerField(min_value=1, max_value=MOST_LINES, default=USUAL_LINES)
    follow = serializers.BooleanField(default=False)
    form = serializers.ChoiceField(choices=["json", "text", "ndjson"], required=False)


OUTPUT_PARAMETERS = [
    OpenApiParameter("after", OpenApiTypes.INT, description="Only lines with a greater number."),
    OpenApiParameter("limit", OpenApiTypes.INT, description=f"At most so many lines ({USUAL_LINES:,})."),
    OpenApiParameter(
        "follow",
        OpenApiTypes.BOOL,
        description="Goes on until the attempt has ended, at most ten minutes and as long as you may see it, "
        "as `text` or `ndjson`.",
    ),
    OpenApiParameter("form", enum=["json", "text", "ndjson"], description="`json`; when followed, `text`."),
]


class Activities(Listed):
    """What happened: every attempt of a step or job, every execution, every change that somebody made.

    Filters other than `target`, `task`, `parent` and the status of what is open look through the history a
    part at a time: a page may have few rows, or none, and still a `next`.
    """

    queryset = Activity.objects.all()
    serializer_class = ActivitySerializer
    filterset_class = ActivityFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id",)
    pagination_class = PartByPart
    times = Times("created_at", "created_after", "created_before", reach=50_000)
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"output": ("after", "limit", "follow", "form")}
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        "output": following.VIEW_OUTPUT,
        "retry": RUN,
    }

    def is_looked_for(self) -> bool:
        given = set(self.request.query_params) - {"cursor", "limit"}
        if self.request.query_params.get("status") in Activity.OPEN:
            given -= {"status"}
        return bool(given) and not given & INDEXED

    def get_queryset(self) -> Any:
        rows = _seen(self.request)
        return rows.defer("traceback", "result", "details") if self.action == "list" else rows

    def get_serializer_class(self) -> Any:
        return ActivityDetailSerializer if self.action == "retrieve" else ActivitySerializer

    @extend_schema(responses=ActivityDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One activity, with its result."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        parameters=OUTPUT_PARAMETERS,
        responses={
            (200, "application/json"): OutputSerializer,
            (200, "text/plain"): OpenApiResponse(OpenApiTypes.STR),
            (200, "application/x-ndjson"): OpenApiResponse(OpenApiTypes.STR, "A line of JSON for each."),
        },
        filters=False,
    )
    @action(detail=True, methods=["get"])
    def output(self, request: Request, pk: str) -> HttpResponseBase:
        """What an attempt wrote: a page of lines, or all of it as it is written."""
        asked = self._asked()
        activity = _seen(request).filter(pk=pk).only("pk", "status").first()
        if activity is None:
            raise Http404(f"There is no activity {pk}.")
        form = asked.get("form") or ("text" if asked["follow"] else "json")
        if asked["follow"]:
            if form == "json":
                raise ValidationError({"form": "What is followed comes as text or ndjson."})
            return following.stream(activity.pk, after=asked["after"], form=form, request=request)
        page = following.page(activity.pk, after=asked["after"], limit=asked["limit"])
        if form == "json":
            return Response(OutputSerializer(page).data)
        content = "".join(following.written(line, form) for line in page.lines)
        return HttpResponse(content, content_type=following.CONTENT_TYPES[form])

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepts(QueuedSerializer))
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """One more attempt of a single job that failed or was cancelled."""
        activity, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: self._retry(activity))

    def _retry(self, activity: Activity) -> Response:
        job = Job.find(activity.task_key) if activity.task_key else None
        if job is None:
            raise Refused(f"“{activity.target_name}” is no single job: retry its execution.")
        job.retry(initiator=self.by, now=self.now)
        return accept_task(self, job.key)

    def _asked(self) -> dict[str, Any]:
        asked = OutputQuery(data=self.request.query_params.dict())
        asked.is_valid(raise_exception=True)
        return dict(asked.validated_data)


def _seen(request: Request) -> ActivityQuerySet:
    return Activity.objects.seen_by(lambda permission: can(request, permission))


class OfActivity(mixins.ListModelMixin, Resource, ABC):
    """A list of what one activity has."""

    @abstractmethod
    def rows(self, activity: int) -> Any: ...

    def get_queryset(self) -> Any:
        pk = int(self.kwargs.get("activity", 0))
        if self.kwargs and not _seen(self.request).filter(pk=pk).exists():
            raise Http404(f"There is no activity {pk}.")
        return self.rows(pk)


class Children(OfActivity):
    """The parts of an activity: of an execution, the attempts of its steps."""

    queryset = Activity.objects.all()
    serializer_class = ActivitySerializer
    orderings = ("id", "-id")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW}

    def rows(self, activity: int) -> Any:
        return Activity.objects.filter(parent=activity).defer("traceback", "result", "details")


class ItemSerializer(serializers.ModelSerializer[ActivityItem]):
    class Meta:
        model = ActivityItem
        fields = ("id", "name", "outcome", "message", "created_at")


class ItemFilters(Filters):
    outcome = filters.ChoiceFilter(choices=ActivityItem.Outcome.choices)


class Items(OfActivity):
    """The objects that an attempt dealt with, each with its outcome."""

    queryset = ActivityItem.objects.all()
    serializer_class = ItemSerializer
    filterset_class = ItemFilters
    orderings = ("id", "-id")
    needs: ClassVar[Mapping[str, str]] = {"list": "activities.view_activityitem"}

    def rows(self, activity: int) -> Any:
        return ActivityItem.objects.filter(activity=activity)
