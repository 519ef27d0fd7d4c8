from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, FlagFilter, MomentFilter, TextFilter
from api.looking_back import PartByPart, Times
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, accepts
from workflows.failures import Status
from workflows.models import Event, Handler, Run, Workflow
from workflows.models.run import LARGE
from workflows.operations import Approve, ItHappened, Reject, RetryRun, SkipRun

from .attempts import AnyJson
from .base import Listed
from .workflows import OPERATE, PHASE_NAMES, STATUSES

VIEW = "workflows.view_run"
MOST_EVENTS = 100
PHASE_STATES = ("done", "here", "ahead")
WAYS_OUT = {
    "approve": Approve(),
    "reject": Reject(),
    "reconcile": ItHappened(),
    "skip": SkipRun(),
    "retry": RetryRun(),
}


class RunSerializer(serializers.ModelSerializer[Run]):
    workflow = serializers.CharField(source="workflow.slug")
    handler = serializers.CharField(source="handler.name")
    kind = serializers.ChoiceField(source="handler.kind", choices=Handler.Kind.choices)
    status = serializers.ChoiceField(choices=STATUSES)
    phase = serializers.ChoiceField(choices=PHASE_NAMES, help_text="Where it is, or where it stopped.")
    effect = serializers.CharField(
        help_text="Of its mutation: `in_flight` (nobody knows), `applied`, `failed`, `skipped`; empty: none."
    )
    is_open = serializers.SerializerMethodField(
        help_text="It runs, or is stuck: nothing else of its workflow runs before it is resolved."
    )
    retry_of = serializers.IntegerField(source="retry_of_id", allow_null=True)

    class Meta:
        model = Run
        fields: tuple[str, ...] = (
            "id",
            "workflow",
            "handler",
            "kind",
            "status",
            "phase",
            "effect",
            "is_open",
            "summary",
            "error",
            "error_type",
            "note",
            "due_at",
            "retry_of",
            "created_at",
            "started_at",
            "finished_at",
            "settled_at",
        )
        read_only_fields: tuple[str, ...] = fields

    def get_is_open(self, run: Run) -> bool:
        return run.settled_at is None


class PhaseSerializer(serializers.Serializer[Any]):
    phase = serializers.CharField()
    state = serializers.ChoiceField(choices=PHASE_STATES)


class RunAttemptSerializer(serializers.ModelSerializer[Run]):
    status = serializers.ChoiceField(choices=STATUSES)
    phase = serializers.ChoiceField(choices=PHASE_NAMES)
    effect = serializers.CharField()

    class Meta:
        model = Run
        fields = ("id", "status", "phase", "effect", "error", "note", "code_version", "created_at")
        read_only_fields = fields


class RunEventSerializer(serializers.ModelSerializer[Event]):
    topic = serializers.CharField(source="topic.slug")

    class Meta:
        model = Event
        fields = ("id", "topic", "seq", "message_id", "title", "status")
        read_only_fields = fields


class RunEventsSerializer(serializers.Serializer[Any]):
    results = RunEventSerializer(many=True)
    is_more = serializers.BooleanField(help_text=f"There are more than these {MOST_EVENTS}.")


class RunDetailSerializer(RunSerializer):
    ways_out = serializers.SerializerMethodField(help_text="What may be done while it is stuck.")
    phases = serializers.SerializerMethodField()
    attempts = serializers.SerializerMethodField(help_text="All that are linked, the first one first.")
    reserved = serializers.SerializerMethodField(help_text="The events that it is about.")
    published = serializers.SerializerMethodField(help_text="The events that it published.")
    prepare_result = AnyJson(help_text="What `prepare` decided.")
    mutation_result = AnyJson(help_text="What the change outside returned.")
    activity = serializers.SerializerMethodField(help_text="Its record, which has its output.")

    class Meta(RunSerializer.Meta):
        fields = (
            *RunSerializer.Meta.fields,
            *("key", "is_approved", "transient", "reconciled", "crashes", "fixes", "code_version"),
            *("ways_out", "phases", "attempts", "reserved", "published"),
            *("prepare_result", "mutation_result", "activity"),
        )
        read_only_fields: tuple[str, ...] = fields

    @extend_schema_field(serializers.ListField(child=serializers.ChoiceField(choices=list(WAYS_OUT))))
    def get_ways_out(self, run: Run) -> list[str]:
        return [name for name, operation in WAYS_OUT.items() if operation.applies(run)]

    @extend_schema_field(PhaseSerializer(many=True))
    def get_phases(self, run: Run) -> list[dict[str, str]]:
        """A producer has no phases between its first and its last."""
        known = [PHASE_NAMES[0], PHASE_NAMES[-1]] if run.handler.is_producer else PHASE_NAMES
        here, is_over = PHASE_NAMES.index(run.phase), run.status == Status.COMMITTED
        return [{"phase": each, "state": _reached(PHASE_NAMES.index(each), here, is_over)} for each in known]

    @extend_schema_field(RunAttemptSerializer(many=True))
    def get_attempts(self, run: Run) -> Any:
        return RunAttemptSerializer(run.chain(), many=True).data

    @extend_schema_field(RunEventsSerializer)
    def get_reserved(self, run: Run) -> Any:
        """As it was prepared: the reservations themselves go on to the attempt that follows."""
        ids = (run.prepare_result or {}).get("reserve", [])[: MOST_EVENTS + 1]
        return _some(Event.objects.filter(pk__in=ids))

    @extend_schema_field(RunEventsSerializer)
    def get_published(self, run: Run) -> Any:
        return _some(run.published.all())

    @extend_schema_field({"type": ["integer", "null"]})
    def get_activity(self, run: Run) -> int | None:
        activity = run.activity()
        return activity.pk if activity else None


def _reached(phase: int, here: int, is_over: bool) -> str:
    if phase < here or (is_over and phase == here):
        return "done"
    return "here" if phase == here else "ahead"


def _some(events: Any) -> Any:
    rows: Sequence[Event] = events.select_related("topic").defer("payload").order_by("pk")[: MOST_EVENTS + 1]
    found = list(rows)
    shown = {"results": found[:MOST_EVENTS], "is_more": len(found) > MOST_EVENTS}
    return RunEventsSerializer(shown).data


class RunNote(Strict[Any]):
    note = serializers.CharField(
        max_length=1_000, allow_blank=True, default="", help_text="Why; it stays with the record."
    )


class Reconciliation(RunNote):
    happened = serializers.BooleanField(help_text="Whether the change outside was made.")
    result = AnyJson(
        required=False, default=None, allow_null=True, help_text="What it would have returned, if it was."
    )


class RunAcceptedSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    status = serializers.ChoiceField(choices=STATUSES)
    followed_by = serializers.IntegerField(
        allow_null=True, help_text="Its next attempt; none until that has begun."
    )
    url = serializers.URLField(help_text="Of its next attempt, if that has begun; also in Location.")


class RunFilters(Filters):
    workflow = TextFilter(method="of_workflow", help_text="The slug of a workflow.")
    handler = TextFilter(field_name="handler__name", help_text="The name of a handler.")
    status = filters.ChoiceFilter(choices=[(each, each) for each in STATUSES], method="in_status")
    is_open = FlagFilter(field_name="settled_at", lookup_expr="isnull", help_text="It runs, or is stuck.")
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    def of_workflow(self, rows: Any, name: str, value: str) -> Any:
        """By its id, which the index of its runs begins with."""
        return rows.filter(workflow=Workflow.objects.filter(slug=value).values("pk")[:1])

    def in_status(self, rows: Any, name: str, value: str) -> Any:
        is_open = {"settled_at": None} if value == Status.ACTIVE else {}
        return rows.filter(status=value, **is_open)


HAPPENED = OpenApiExample(
    "It did", value={"happened": True, "result": {"row": 17}, "note": "I looked."}, request_only=True
)
NOTE = OpenApiExample("With a note", value={"note": "The token is renewed."}, request_only=True)


class Runs(Listed):
    """Each attempt of a handler: how far it came, what it took and gave, and what it waits for.

    Filters other than `workflow`, `is_open=true` and `status=active` look through the history a part at a
    time: a page may have few rows, or none, and still a `next`.
    """

    queryset = Run.objects.all()
    serializer_class = RunSerializer
    filterset_class = RunFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id",)
    pagination_class = PartByPart
    times = Times("created_at", "created_after", "created_before", reach=20_000)
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        **dict.fromkeys(("approve", "reject", "reconcile", "skip", "retry"), OPERATE),
    }

    def is_looked_for(self) -> bool:
        given = self.request.query_params
        is_short = given.get("is_open") == "true" or given.get("status") == Status.ACTIVE
        return not is_short and bool(set(given) - {"cursor", "limit", "workflow"})

    def get_queryset(self) -> Any:
        rows = Run.objects.select_related("workflow", "handler").defer("handler__state", "handler__spec")
        return rows.defer(*LARGE) if self.action == "list" else rows

    def get_serializer_class(self) -> Any:
        return RunDetailSerializer if self.action == "retrieve" else RunSerializer

    @extend_schema(responses=RunDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One run: its phases, the attempts before and after it, its events and its results."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=RunNote,
        parameters=[IDEMPOTENCY_KEY],
        responses=accepts(RunAcceptedSerializer),
        examples=[NOTE],
    )
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, pk: str) -> Response:
        """It goes on where it stopped, with what it had prepared."""
        return self._resolve(RunNote, Run.approve)

    @extend_schema(request=RunNote, parameters=[IDEMPOTENCY_KEY], responses=accepts(RunAcceptedSerializer))
    @action(detail=True, methods=["post"])
    def reject(self, request: Request, pk: str) -> Response:
        """What it had prepared is left undone; if that is nothing, the workflow pauses."""
        return self._resolve(RunNote, Run.reject)

    @extend_schema(
        request=Reconciliation,
        parameters=[IDEMPOTENCY_KEY],
        responses=accepts(RunAcceptedSerializer),
        examples=[HAPPENED],
    )
    @action(detail=True, methods=["post"])
    def reconcile(self, request: Request, pk: str) -> Response:
        """Says whether a mutation of unknown outcome happened."""
        return self._resolve(Reconciliation, Run.reconcile)

    @extend_schema(request=RunNote, parameters=[IDEMPOTENCY_KEY], responses=accepts(RunAcceptedSerializer))
    @action(detail=True, methods=["post"])
    def skip(self, request: Request, pk: str) -> Response:
        """Leaves the mutation out: the events that it is about are skipped for good."""
        return self._resolve(RunNote, Run.skip)

    @extend_schema(request=RunNote, parameters=[IDEMPOTENCY_KEY], responses=accepts(RunAcceptedSerializer))
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Its next attempt begins now, with all tries before it."""
        return self._resolve(RunNote, Run.retry)

    def _resolve(self, serializer: type[Strict[Any]], verb: Callable[..., None]) -> Response:
        run, read = self.get_object(), self.read(serializer)
        return self.once(lambda: self._resolved(run, partial(verb, run, **read)))

    def _resolved(self, run: Run, verb: Callable[..., None]) -> Response:
        verb(initiator=self.by, now=self.now)
        # Not left to the commit: the answer says what follows.
        run.workflow.start(self.now)
        run.refresh_from_db()
        followed_by = run.retries.order_by("pk").values_list("pk", flat=True).first()
        url = reverse("api:run-detail", args=[followed_by or run.pk])
        return self.accepted({"id": run.pk, "status": run.status, "followed_by": followed_by}, url=url)
