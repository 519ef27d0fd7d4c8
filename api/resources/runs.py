"""Runs of the producers and consumers of workflows."""

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
from api.paging import HistoryPages, HistoryRange
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, accepted
from workflows.failures import Status
from workflows.models import Event, Handler, Run, Workflow
from workflows.models.run import LARGE
from workflows.operations import Approve, MarkApplied, Reject, RetryRun, SkipRun

from .attempts import AnyJson
from .base import ListedResource
from .workflows import OPERATE, PHASE_NAMES, STATUSES

VIEW = "workflows.view_run"
MOST_EVENTS = 100
PHASE_STATES = ("done", "here", "ahead")
WAYS_OUT = {
    "approve": Approve(),
    "reject": Reject(),
    "reconcile": MarkApplied(),
    "skip": SkipRun(),
    "retry": RetryRun(),
}


class RunSerializer(serializers.ModelSerializer[Run]):
    workflow = serializers.CharField(source="workflow.slug")
    handler = serializers.CharField(source="handler.name")
    kind = serializers.ChoiceField(source="handler.kind", choices=Handler.Kind.choices)
    status = serializers.ChoiceField(choices=STATUSES)
    phase = serializers.ChoiceField(
        choices=PHASE_NAMES, help_text="The current phase, or the phase in which the run stopped."
    )
    effect = serializers.CharField(
        help_text="The state of the mutation, which is the change that the run makes outside JIM: "
        "`in_flight` (outcome unknown), `applied`, `failed` or `skipped`. Empty if no mutation was started."
    )
    is_open = serializers.SerializerMethodField(
        help_text="Whether the run is in progress, waiting for a retry, or stuck. While this is true, no "
        "other handler of the workflow runs."
    )
    retry_of = serializers.IntegerField(
        source="retry_of_id",
        allow_null=True,
        help_text="The id of the run that was the previous attempt. Null for a first attempt.",
    )

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


class PhaseProgressSerializer(serializers.Serializer[Any]):
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
    is_more = serializers.BooleanField(help_text=f"Whether there are more than {MOST_EVENTS} events.")


class RunDetailSerializer(RunSerializer):
    ways_out = serializers.SerializerMethodField(
        help_text="The actions that can currently resolve the run. Empty if the run is in progress or has "
        "ended."
    )
    phases = serializers.SerializerMethodField()
    attempts = serializers.SerializerMethodField(
        help_text="All attempts at the same work, including this run, oldest first."
    )
    reserved = serializers.SerializerMethodField(help_text="The events that the run has chosen to consume.")
    published = serializers.SerializerMethodField(help_text="The events that the run published.")
    prepare_result = AnyJson(help_text="The value that `prepare` returned.")
    mutation_result = AnyJson(help_text="The value that the mutation returned.")
    activity = serializers.SerializerMethodField(
        help_text="The id of the activity that contains the output of the run."
    )

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

    @extend_schema_field(PhaseProgressSerializer(many=True))
    def get_phases(self, run: Run) -> list[dict[str, str]]:
        """Return the phases of a run with their states. A producer has only the first and the last phase."""
        known = [PHASE_NAMES[0], PHASE_NAMES[-1]] if run.handler.is_producer else PHASE_NAMES
        here, is_over = PHASE_NAMES.index(run.phase), run.status == Status.COMMITTED
        return [
            {"phase": each, "state": _phase_state(PHASE_NAMES.index(each), here, is_over)} for each in known
        ]

    @extend_schema_field(RunAttemptSerializer(many=True))
    def get_attempts(self, run: Run) -> Any:
        return RunAttemptSerializer(run.chain(), many=True).data

    @extend_schema_field(RunEventsSerializer)
    def get_reserved(self, run: Run) -> Any:
        """Return the events that the run chose in `prepare`, even if a later attempt has reserved them."""
        ids = (run.prepare_result or {}).get("reserve", [])[: MOST_EVENTS + 1]
        return _first_events(Event.objects.filter(pk__in=ids))

    @extend_schema_field(RunEventsSerializer)
    def get_published(self, run: Run) -> Any:
        return _first_events(run.published.all())

    @extend_schema_field({"type": ["integer", "null"]})
    def get_activity(self, run: Run) -> int | None:
        activity = run.activity()
        return activity.pk if activity else None


def _phase_state(phase: int, here: int, is_over: bool) -> str:
    if phase < here or (is_over and phase == here):
        return "done"
    return "here" if phase == here else "ahead"


def _first_events(events: Any) -> Any:
    rows: Sequence[Event] = events.select_related("topic").defer("payload").order_by("pk")[: MOST_EVENTS + 1]
    found = list(rows)
    page = {"results": found[:MOST_EVENTS], "is_more": len(found) > MOST_EVENTS}
    return RunEventsSerializer(page).data


class ResolveOptions(Strict[Any]):
    note = serializers.CharField(
        max_length=1_000,
        allow_blank=True,
        default="",
        help_text="The reason for the decision, which is kept in the history.",
    )


class ReconcileOptions(ResolveOptions):
    happened = serializers.BooleanField(help_text="Whether the mutation was carried out.")
    result = AnyJson(
        required=False,
        default=None,
        allow_null=True,
        help_text="If the mutation was carried out, its result. The next phase of the run receives this "
        "value.",
    )


class AcceptedResolutionSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    status = serializers.ChoiceField(choices=STATUSES)
    followed_by = serializers.IntegerField(
        allow_null=True, help_text="The id of the next attempt. Null if the next attempt has not started yet."
    )
    url = serializers.URLField(
        help_text="The URL of the next attempt or, if the next attempt has not started yet, of this run. The "
        "Location header contains the same URL."
    )


class RunFilters(Filters):
    workflow = TextFilter(method="of_workflow", help_text="Return only runs of the workflow with this slug.")
    handler = TextFilter(
        field_name="handler__name", help_text="Return only runs of the handler with this name."
    )
    status = filters.ChoiceFilter(choices=[(each, each) for each in STATUSES], method="in_status")
    is_open = FlagFilter(
        field_name="settled_at",
        lookup_expr="isnull",
        help_text="If true, return only runs that are in progress, waiting for a retry, or stuck. If false, "
        "return only other runs.",
    )
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")

    def of_workflow(self, rows: Any, name: str, value: str) -> Any:
        """Keep the runs of the workflow with this slug.

        A subquery finds the workflow's id, because the database has an index on this id.
        """
        return rows.filter(workflow=Workflow.objects.filter(slug=value).values("pk")[:1])

    def in_status(self, rows: Any, name: str, value: str) -> Any:
        is_open = {"settled_at": None} if value == Status.ACTIVE else {}
        return rows.filter(status=value, **is_open)


HAPPENED = OpenApiExample(
    "The mutation was carried out",
    value={"happened": True, "result": {"row": 17}, "note": "Row 17 exists."},
    request_only=True,
)
NOTE = OpenApiExample("With a note", value={"note": "The token has been renewed."}, request_only=True)


class Runs(ListedResource):
    """List the runs of producers and consumers, newest first.

    A list that is filtered by `is_open=true` or `status=active`, or only by `workflow`, is searched
    completely. With other filters, each page searches only a limited part of the history. Even a short or
    empty page can then have a `next` link.
    """

    queryset = Run.objects.all()
    serializer_class = RunSerializer
    filterset_class = RunFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id",)
    pagination_class = HistoryPages
    history_range = HistoryRange("created_at", "created_after", "created_before", reach=20_000)
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        **dict.fromkeys(("approve", "reject", "reconcile", "skip", "retry"), OPERATE),
    }

    def scans_history(self) -> bool:
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
        """Retrieve a run with its phases, attempts, events and results."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=ResolveOptions,
        parameters=[IDEMPOTENCY_KEY],
        responses=accepted(AcceptedResolutionSerializer),
        examples=[NOTE],
    )
    @action(detail=True, methods=["post"])
    def approve(self, request: Request, pk: str) -> Response:
        """Approve a run that waits for approval.

        The run continues where it stopped, and uses the results that were already prepared.
        """
        return self._resolve(ResolveOptions, Run.approve)

    @extend_schema(
        request=ResolveOptions, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedResolutionSerializer)
    )
    @action(detail=True, methods=["post"])
    def reject(self, request: Request, pk: str) -> Response:
        """Reject a run that waits for approval.

        The mutation is not made, and the events that the run reserved are skipped permanently. If no events
        were reserved, or the mutation was already made or skipped, nothing can be skipped, so the workflow is
        paused instead.
        """
        return self._resolve(ResolveOptions, Run.reject)

    @extend_schema(
        request=ReconcileOptions,
        parameters=[IDEMPOTENCY_KEY],
        responses=accepted(AcceptedResolutionSerializer),
        examples=[HAPPENED],
    )
    @action(detail=True, methods=["post"])
    def reconcile(self, request: Request, pk: str) -> Response:
        """Report whether a mutation whose outcome is unknown was carried out.

        If the mutation was carried out, the next attempt continues after the mutation. Otherwise, the next
        attempt starts from the beginning.
        """
        return self._resolve(ReconcileOptions, Run.reconcile)

    @extend_schema(
        request=ResolveOptions, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedResolutionSerializer)
    )
    @action(detail=True, methods=["post"])
    def skip(self, request: Request, pk: str) -> Response:
        """Skip the mutation of a stuck run.

        The events that the run has reserved are also skipped, permanently.
        """
        return self._resolve(ResolveOptions, Run.skip)

    @extend_schema(
        request=ResolveOptions, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedResolutionSerializer)
    )
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Retry a stuck run now.

        Automatic retries are counted from zero again.
        """
        return self._resolve(ResolveOptions, Run.retry)

    def _resolve(self, serializer: type[Strict[Any]], verb: Callable[..., None]) -> Response:
        run, read = self.get_object(), self.read(serializer)
        return self.once(lambda: self._resolved(run, partial(verb, run, **read)))

    def _resolved(self, run: Run, verb: Callable[..., None]) -> Response:
        verb(initiator=self.by, now=self.now)
        # The next attempt is started here and not on commit, because the response contains its id.
        run.workflow.start(self.now)
        run.refresh_from_db()
        followed_by = run.retries.order_by("pk").values_list("pk", flat=True).first()
        url = reverse("api:run-detail", args=[followed_by or run.pk])
        return self.accepted({"id": run.pk, "status": run.status, "followed_by": followed_by}, url=url)
