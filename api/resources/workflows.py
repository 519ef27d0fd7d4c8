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
from api.schema import IDEMPOTENCY_KEY, accepts
from schedules.models import Refused
from workflows.failures import PHASES, Status
from workflows.models import Handler, Workflow
from workflows.overview import Overview, look
from workflows.words import schedule_words

from .attempts import AnyJson
from .base import Listed

VIEW, OPERATE = "workflows.view_workflow", "workflows.operate_workflow"
SLUG = "[-a-zA-Z0-9_]{1,60}"
SHOWN = ("running", "idle", "needs_attention", "stopped")
STATUSES = tuple(status.value for status in Status)
PHASE_NAMES = tuple(phase.value for phase in PHASES)


class BacklogSerializer(serializers.Serializer[Any]):
    topic = serializers.CharField()
    count = serializers.IntegerField(help_text="Events that wait; counted up to 1,000.")
    is_more = serializers.BooleanField(help_text="There are more than that.")
    oldest_at = serializers.DateTimeField(allow_null=True, help_text="Since when the first of them waits.")


class OpenRunSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(source="pk")
    handler = serializers.CharField(source="handler.name")
    status = serializers.ChoiceField(choices=STATUSES)
    phase = serializers.ChoiceField(choices=PHASE_NAMES)
    error = serializers.CharField()
    due_at = serializers.DateTimeField(allow_null=True, help_text="When it is tried again by itself.")
    created_at = serializers.DateTimeField()


class WorkflowSerializer(serializers.Serializer[Overview]):
    slug = serializers.CharField(source="workflow.slug")
    title = serializers.CharField(source="workflow.title")
    description = serializers.CharField(source="workflow.description")
    status = serializers.ChoiceField(
        choices=SHOWN, help_text="`stopped`: paused by somebody, or no longer in the code."
    )
    issue = serializers.CharField(help_text="What it waits for and who can resolve it; empty if all is well.")
    schedule = serializers.CharField(help_text="When it looks for work by itself, in words.")
    next_at = serializers.DateTimeField(
        allow_null=True, help_text="When it goes on by itself, if no event comes before."
    )
    pending = BacklogSerializer(source="backlogs", many=True, help_text="By topic that it consumes.")
    open_run = OpenRunSerializer(allow_null=True, help_text="The one that runs, or that it is stuck with.")
    is_paused = serializers.SerializerMethodField()
    pool = serializers.CharField(source="workflow.pool")
    deployed_at = serializers.DateTimeField(source="workflow.deployed_at")

    def get_is_paused(self, seen: Overview) -> bool:
        return seen.workflow.status == Workflow.Status.PAUSED


class HandlerSerializer(serializers.ModelSerializer[Handler]):
    schedule = serializers.SerializerMethodField(help_text="When it runs, in words.")
    subscribes = serializers.ListField(child=serializers.CharField(), help_text="Topics that it consumes.")
    publishes = serializers.ListField(child=serializers.CharField())
    spec = AnyJson(help_text="When a producer runs.")
    state = AnyJson(help_text="Its own: cursors, checkpoints.")

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
        extra_kwargs = {"wake_at": {"help_text": "When a consumer asked to look again."}}

    def get_schedule(self, handler: Handler) -> str:
        return schedule_words([handler])


class WorkflowDetailSerializer(WorkflowSerializer):
    handlers = serializers.SerializerMethodField()

    @extend_schema_field(HandlerSerializer(many=True))
    def get_handlers(self, seen: Overview) -> Any:
        topics: dict[int, list[str]] = {}
        for each in seen.backlogs:
            topics.setdefault(each.handler_id, []).append(each.topic)
        for handler in seen.handlers:
            handler.subscribes = topics.get(handler.pk, [])  # type: ignore[attr-defined]
        return HandlerSerializer(seen.handlers, many=True).data


class PauseNote(Strict[Any]):
    note = serializers.CharField(max_length=1_000, allow_blank=True, default="", help_text="Why.")


class WorkflowAcceptedSerializer(serializers.Serializer[Any]):
    slug = serializers.CharField()
    status = serializers.ChoiceField(choices=SHOWN)
    url = serializers.URLField(help_text="Where it can be watched; also in the header Location.")


class WorkflowStartedSerializer(WorkflowAcceptedSerializer):
    producers = serializers.ListField(child=serializers.CharField(), help_text="Those that run, in order.")


class WorkflowFilters(Filters):
    status = filters.ChoiceFilter(choices=[(each, each) for each in SHOWN], method="shown_as")

    def shown_as(self, rows: Any, name: str, value: str) -> Any:
        return rows.shown_as(value)


PAUSE = OpenApiExample("Before a move", value={"note": "The mailbox moves tonight."}, request_only=True)


class Workflows(Listed):
    """Event-driven work, as the code defines it: what each does, what it waits for, what waits for it."""

    queryset = Workflow.objects.all()
    serializer_class = WorkflowSerializer
    filterset_class = WorkflowFilters
    lookup_field, lookup_value_regex = "slug", SLUG
    orderings = ("slug", "-slug")
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        **dict.fromkeys(("run", "pause", "resume"), OPERATE),
    }

    def paginate_queryset(self, queryset: Any) -> Any:
        return look(super().paginate_queryset(queryset) or [], now=self.now)

    def get_serializer_class(self) -> Any:
        return WorkflowSerializer if self.action == "list" else WorkflowDetailSerializer

    @extend_schema(responses=WorkflowDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One workflow, with its producers and consumers."""
        return self.shown(self._seen(with_state=True))

    @extend_schema(
        request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepts(WorkflowStartedSerializer)
    )
    @action(detail=True, methods=["post"])
    def run(self, request: Request, slug: str) -> Response:
        """All its producers run now, one after the other; refused while something runs or is stuck."""
        workflow, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: self._run(workflow))

    def _run(self, workflow: Workflow) -> Response:
        producers = workflow.run_now(initiator=self.by, now=self.now)
        return self._accept({"producers": [producer.name for producer in producers]})

    @extend_schema(request=PauseNote, responses=accepts(WorkflowAcceptedSerializer), examples=[PAUSE])
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, slug: str) -> Response:
        """Nothing else of it starts until somebody resumes it; what runs goes on to its end."""
        workflow, read = self.get_object(), self.read(PauseNote)
        if not workflow.pause(read["note"], initiator=self.by, now=self.now):
            raise Refused(f"“{workflow}” is not running.")
        return self._accept({})

    @extend_schema(request=Nothing, responses=accepts(WorkflowAcceptedSerializer))
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, slug: str) -> Response:
        """It sees to what has come meanwhile, then goes on as before."""
        workflow, _ = self.get_object(), self.read(Nothing)
        if not workflow.resume(initiator=self.by, now=self.now):
            raise Refused(f"“{workflow}” is not paused.")
        return self._accept({})

    def _accept(self, body: Mapping[str, Any]) -> Response:
        seen = self._seen()
        url = reverse("api:workflow-detail", args=[seen.workflow.slug])
        return self.accepted({"slug": seen.workflow.slug, "status": seen.status, **body}, url=url)

    def _seen(self, *, with_state: bool = False) -> Overview:
        return look([self.get_object()], now=self.now, with_state=with_state)[0]
