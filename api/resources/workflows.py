"""Workflows and the actions on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters
from api.reading import Nothing, Strict
from api.schema import IDEMPOTENCY_KEY, accepted
from schedules.models import Refused
from workflows.failures import PHASES, Status
from workflows.models import Handler, Workflow
from workflows.overview import Overview, overviews_of
from workflows.words import SHOWN_STATUSES, schedule_words

from .attempts import AnyJson
from .base import ListedResource

VIEW, OPERATE = "workflows.view_workflow", "workflows.operate_workflow"
SLUG = "[-a-zA-Z0-9_]{1,60}"
STATUSES = tuple(status.value for status in Status)
PHASE_NAMES = tuple(phase.value for phase in PHASES)


class TopicBacklogSerializer(serializers.Serializer[Any]):
    topic = serializers.CharField()
    count = serializers.IntegerField(help_text="Number of pending events in the topic, up to 1,000.")
    is_more = serializers.BooleanField(
        help_text="Whether the topic has more pending events than `count` says."
    )
    oldest_at = serializers.DateTimeField(
        allow_null=True, help_text="When the oldest pending event was published."
    )


class OpenRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="pk")
    handler = serializers.CharField(source="handler.name")
    status = serializers.ChoiceField(choices=STATUSES)
    phase = serializers.ChoiceField(choices=PHASE_NAMES)
    error = serializers.CharField()
    due_at = serializers.DateTimeField(
        allow_null=True,
        help_text="When the run will be retried automatically. Null if no automatic retry is planned.",
    )
    created_at = serializers.DateTimeField()


class WorkflowSerializer(serializers.Serializer[Overview]):
    slug = serializers.CharField(source="workflow.slug")
    title = serializers.CharField(source="workflow.title")
    description = serializers.CharField(source="workflow.description")
    status = serializers.ChoiceField(
        choices=SHOWN_STATUSES,
        help_text="`running` means that a run is in progress or will be retried automatically. `stopped` "
        "means that the workflow was removed from the code.",
    )
    issue = serializers.CharField(
        help_text="Why the workflow is stopped, paused, stuck or waiting for a retry, and what can be done. "
        "Empty in all other cases."
    )
    schedule = serializers.CharField(
        help_text="A description of when the producers run, such as “Every 5 minutes”."
    )
    next_at = serializers.DateTimeField(
        allow_null=True, help_text="When the workflow will run next, unless a new event starts it earlier."
    )
    pending = TopicBacklogSerializer(
        source="backlogs", many=True, help_text="The pending events of each topic that the workflow consumes."
    )
    open_run = OpenRunSerializer(
        allow_null=True,
        help_text="The run that is in progress, waiting for a retry, or stuck. Null if the workflow has no "
        "such run.",
    )
    is_paused = serializers.SerializerMethodField()
    pool = serializers.CharField(source="workflow.pool")
    deployed_at = serializers.DateTimeField(source="workflow.deployed_at")

    def get_is_paused(self, overview: Overview) -> bool:
        return overview.workflow.status == Workflow.Status.PAUSED


class HandlerSerializer(serializers.ModelSerializer[Handler]):
    schedule = serializers.SerializerMethodField(
        help_text="A description of when the handler runs, such as “Every 5 minutes”."
    )
    subscribes = serializers.ListField(
        child=serializers.CharField(), help_text="The topics whose events the handler consumes."
    )
    publishes = serializers.ListField(
        child=serializers.CharField(), help_text="The topics to which the handler publishes events."
    )
    spec = AnyJson(help_text="For a producer, the spec that says when the producer runs.")
    state = AnyJson(help_text="Data that the handler keeps from one run to the next.")

    class Meta:
        model = Handler
        fields = (
            "name",
            "title",
            "kind",
            "schedule",
            "spec",
            "subscribes",
            "publishes",
            "next_run_at",
            "wake_at",
            "timeout_seconds",
            "code_version",
            "is_stopped",
            "state",
        )
        read_only_fields = fields
        extra_kwargs = {
            "wake_at": {"help_text": "For a consumer, when it wants to run again, even without a new event."}
        }

    def get_schedule(self, handler: Handler) -> str:
        return schedule_words([handler])


class WorkflowDetailSerializer(WorkflowSerializer):
    handlers = serializers.SerializerMethodField()

    @extend_schema_field(HandlerSerializer(many=True))
    def get_handlers(self, overview: Overview) -> Any:
        topics: dict[int, list[str]] = {}
        for each in overview.backlogs:
            topics.setdefault(each.handler_id, []).append(each.topic)
        for handler in overview.handlers:
            handler.subscribes = topics.get(handler.pk, [])  # type: ignore[attr-defined]
        return HandlerSerializer(overview.handlers, many=True).data


class WorkflowPauseOptions(Strict[Any]):
    note = serializers.CharField(
        max_length=1_000, allow_blank=True, default="", help_text="The reason for the pause."
    )


class AcceptedWorkflowSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()
    status = serializers.ChoiceField(choices=SHOWN_STATUSES)
    url = serializers.URLField(
        help_text="The URL at which you can follow the workflow. The Location header contains the same URL."
    )


class AcceptedWorkflowRunSerializer(AcceptedWorkflowSerializer):
    producers = serializers.ListField(
        child=serializers.CharField(), help_text="The names of the producers that will run, in this order."
    )


class WorkflowFilters(Filters):
    status = filters.ChoiceFilter(choices=[(each, each) for each in SHOWN_STATUSES], method="shown_as")

    def shown_as(self, rows: Any, name: str, value: str) -> Any:
        return rows.shown_as(value)


PAUSE = OpenApiExample("With a note", value={"note": "The mailbox will be moved tonight."}, request_only=True)


class Workflows(ListedResource):
    """List the workflows."""

    queryset = Workflow.objects.all()
    serializer_class, row_class = WorkflowDetailSerializer, WorkflowSerializer
    filterset_class = WorkflowFilters
    lookup_field, lookup_value_regex = "slug", SLUG
    orderings = ("slug", "-slug")
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        **dict.fromkeys(("run", "pause", "resume"), OPERATE),
    }

    def paginate_queryset(self, queryset: Any) -> Any:
        return overviews_of(super().paginate_queryset(queryset) or [], now=self.now)

    @extend_schema(responses=WorkflowDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a workflow with its producers and consumers."""
        return self.respond_with(self._overview(with_state=True))

    @extend_schema(
        request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedWorkflowRunSerializer)
    )
    @action(detail=True, methods=["post"])
    def run(self, request: Request, slug: str) -> Response:
        """Run all producers of a workflow now, one after the other.

        The request is refused (409) while a run of the workflow is in progress, waits for a retry, or is
        stuck.
        """
        workflow, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: self._run(workflow))

    def _run(self, workflow: Workflow) -> Response:
        producers = workflow.run_now(initiator=self.by, now=self.now)
        return self._accept({"producers": [producer.name for producer in producers]})

    @extend_schema(
        request=WorkflowPauseOptions, responses=accepted(AcceptedWorkflowSerializer), examples=[PAUSE]
    )
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, slug: str) -> Response:
        """Pause a workflow.

        No further runs start until the workflow is resumed. A run in progress continues to its end.
        """
        workflow, read = self.get_object(), self.read(WorkflowPauseOptions)
        if not workflow.pause(read["note"], initiator=self.by, now=self.now):
            raise Refused(f"“{workflow}” is not active, so it cannot be paused.")
        return self._accept({})

    @extend_schema(request=Nothing, responses=accepted(AcceptedWorkflowSerializer))
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, slug: str) -> Response:
        """Resume a paused workflow.

        Events that arrived during the pause are consumed first.
        """
        workflow, _ = self.get_object(), self.read(Nothing)
        if not workflow.resume(initiator=self.by, now=self.now):
            raise Refused(f"“{workflow}” is not paused.")
        return self._accept({})

    def _accept(self, body: Mapping[str, Any]) -> Response:
        overview = self._overview()
        url = reverse("api:workflow-detail", args=[overview.workflow.slug])
        return self.accepted({"slug": overview.workflow.slug, "status": overview.status, **body}, url=url)

    def _overview(self, *, with_state: bool = False) -> Overview:
        return overviews_of([self.get_object()], now=self.now, with_state=with_state)[0]
