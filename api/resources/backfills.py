from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_serializer
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.errors import Problem
from api.filtering import Filters
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, accepts, acts
from schedules import permissions
from schedules.models import Backfill, Overlap
from schedules.models.backfill import LONGEST_REASON, USUAL_OVERLAP, USUAL_WHICH

from .base import Listed, Resource
from .occurrences import OfSchedule

TIMES_SHOWN = 10


class BackfillListed(serializers.ModelSerializer[Backfill]):
    initiator = serializers.CharField(source="initiator_name")

    class Meta:
        model = Backfill
        fields = (
            "id",
            "schedule",
            "start_at",
            "end_at",
            "which",
            "overlap",
            "status",
            "reason",
            "total",
            "passed_count",
            "added_count",
            "initiator",
            "created_at",
            "finished_at",
        )
        read_only_fields = fields


class OutcomesSerializer(serializers.Serializer[Any]):
    waiting = serializers.IntegerField()
    started = serializers.IntegerField()
    running = serializers.IntegerField()
    not_started = serializers.IntegerField()


class BackfillSerializer(BackfillListed):
    progress = OutcomesSerializer(read_only=True, help_text="What became of those that were added.")

    class Meta(BackfillListed.Meta):
        fields = (*BackfillListed.Meta.fields, "progress")  # type: ignore[assignment]
        read_only_fields = fields  # type: ignore[assignment]


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A dry run",
            {
                "start_at": "2026-11-01T00:00:00Z",
                "end_at": "2026-11-08T00:00:00Z",
                "which": "missing",
                "dry_run": True,
            },
        )
    ]
)
class BackfillWriting(Strict[Any]):
    start_at = serializers.DateTimeField(help_text="Included.")
    end_at = serializers.DateTimeField(help_text="Included, and not in the future.")
    which = serializers.ChoiceField(choices=Backfill.Which.choices, default=USUAL_WHICH)
    overlap = serializers.ChoiceField(choices=Overlap.choices, default=USUAL_OVERLAP)
    dry_run = serializers.BooleanField(required=False, help_text="Only say what it would do.")


class SurveySerializer(serializers.Serializer[Any]):
    """What a backfill would do."""

    total = serializers.IntegerField(help_text="The times in the range.")
    chosen = serializers.IntegerField(help_text="Those that would be started.")
    left_out = serializers.DictField(child=serializers.IntegerField(), help_text="The others, by reason.")
    times = serializers.ListField(child=serializers.DateTimeField(), help_text="The first that are chosen.")
    last = serializers.DateTimeField(allow_null=True)


class RequestedBackfillSerializer(serializers.Serializer[Any]):
    backfill = serializers.IntegerField()
    total = serializers.IntegerField()
    url = serializers.URLField()


class ReasonWriting(Strict[Any]):
    reason = serializers.CharField(max_length=LONGEST_REASON, allow_blank=True, required=False)


class BackfillFilters(Filters):
    status = filters.ChoiceFilter(choices=Backfill.Status.choices)


class BackfillsOfSchedule(OfSchedule, mixins.ListModelMixin, Resource):
    """The past ranges whose times were started again or at last, the newest first."""

    queryset = Backfill.objects.defer("spec", "calendars")
    serializer_class = BackfillListed
    filterset_class = BackfillFilters
    orderings = ("-id", "id")
    needs: ClassVar[Mapping[str, str]] = {"list": "schedules.view_backfill", "create": permissions.RUN}

    @extend_schema(
        request=BackfillWriting,
        parameters=[IDEMPOTENCY_KEY],
        responses={200: SurveySerializer, **accepts(RequestedBackfillSerializer)},
    )
    def create(self, request: Request, schedule_id: str) -> Response:
        """Start the times of a past range; with `dry_run`, only say which ones they are (200)."""
        read = self.read(BackfillWriting)
        if read.pop("dry_run", False):
            return self._survey(read)
        if (before := self.answered()) is not None:
            return before
        # Before the transaction of `once`: on SQLite, nothing else could be written while times are counted.
        wanted = Backfill.objects.counted(self.schedule, **read, initiator=self.by, now=self.now)
        return self.once(lambda: self._open(wanted))

    def _open(self, backfill: Backfill) -> Response:
        backfill.open()
        body = {"backfill": backfill.pk, "total": backfill.total}
        return self.accepted(body, url=reverse("api:backfill-detail", args=[backfill.pk]))

    def _survey(self, read: dict[str, Any]) -> Response:
        asked = {name: read[name] for name in ("start_at", "end_at", "which")}
        survey = Backfill.objects.survey(self.schedule, **asked, now=self.now, limit=TIMES_SHOWN)
        return Response(SurveySerializer(survey).data)


class Backfills(Listed):
    """Past ranges whose times are started again or at last, the newest first."""

    queryset = Backfill.objects.select_related("schedule").defer("spec", "calendars")
    serializer_class = BackfillSerializer
    filterset_class = BackfillFilters
    lookup_value_regex = "[0-9]{1,18}"
    needs: ClassVar[Mapping[str, str]] = {
        "list": "schedules.view_backfill",
        "retrieve": "schedules.view_backfill",
        "cancel": permissions.RUN,
    }

    def get_serializer_class(self) -> Any:
        return BackfillListed if self.action == "list" else BackfillSerializer

    @extend_schema(request=ReasonWriting, responses=acts(BackfillSerializer))
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Start nothing more of it; what is running goes on."""
        reason = self.read(ReasonWriting).get("reason", "")
        backfill: Backfill = self.get_object()
        if not backfill.cancel(initiator=self.by, now=self.now, reason=reason):
            raise Problem(f"The backfill {backfill} has ended already.", status_code=409)
        return self.shown(self.get_object())
