"""Backfills: requests to run a schedule for scheduled times in the past."""

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
from api.schema import IDEMPOTENCY_KEY, accepted, performed
from schedules import permissions
from schedules.models import Backfill, Overlap
from schedules.models.backfill import LONGEST_REASON, USUAL_OVERLAP, USUAL_WHICH

from .base import ListedResource, Resource
from .occurrences import ScheduleResource

TIMES_SHOWN = 10


class BackfillSummary(serializers.ModelSerializer[Backfill]):
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


class BackfillOutcomesSerializer(serializers.Serializer[Any]):
    waiting = serializers.IntegerField()
    started = serializers.IntegerField()
    running = serializers.IntegerField()
    not_started = serializers.IntegerField()


class BackfillSerializer(BackfillSummary):
    progress = BackfillOutcomesSerializer(
        read_only=True, help_text="Number of occurrences that the backfill has added so far, by state."
    )

    class Meta(BackfillSummary.Meta):
        fields = (*BackfillSummary.Meta.fields, "progress")  # type: ignore[assignment]
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
class NewBackfill(Strict[Any]):
    start_at = serializers.DateTimeField(help_text="The start of the time range, inclusive.")
    end_at = serializers.DateTimeField(
        help_text="The end of the time range, inclusive. The end must not be in the future."
    )
    which = serializers.ChoiceField(
        choices=Backfill.Which.choices,
        default=USUAL_WHICH,
        help_text="Which scheduled times in the range to run.",
    )
    overlap = serializers.ChoiceField(
        choices=Overlap.choices,
        default=USUAL_OVERLAP,
        help_text="What to do with a scheduled time if another execution of the schedule is still running.",
    )
    dry_run = serializers.BooleanField(
        required=False,
        help_text="Return the scheduled times that the backfill would run, but do not start the backfill.",
    )


class BackfillDryRunSerializer(serializers.Serializer[Any]):
    """The result of a dry run of a backfill."""

    total = serializers.IntegerField(help_text="Number of scheduled times in the range.")
    chosen = serializers.IntegerField(help_text="Number of scheduled times that the backfill would run.")
    left_out = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Number of scheduled times that the backfill would leave out, by reason.",
    )
    times = serializers.ListField(
        child=serializers.DateTimeField(),
        help_text=f"The first scheduled times that the backfill would run, at most {TIMES_SHOWN}.",
    )
    last = serializers.DateTimeField(
        allow_null=True,
        help_text="The last scheduled time that the backfill would run. Null if nothing would run.",
    )


class AcceptedBackfillSerializer(serializers.Serializer[Any]):
    backfill = serializers.IntegerField(help_text="The id of the backfill.")
    total = serializers.IntegerField(help_text="Number of scheduled times in the range.")
    url = serializers.URLField(
        help_text="The URL of the backfill. The Location header contains the same URL."
    )


class CancelBackfill(Strict[Any]):
    reason = serializers.CharField(
        max_length=LONGEST_REASON,
        allow_blank=True,
        required=False,
        help_text="Why the backfill is cancelled. The reason is kept in the history.",
    )


class BackfillFilters(Filters):
    status = filters.ChoiceFilter(choices=Backfill.Status.choices)


class BackfillsOfSchedule(ScheduleResource, mixins.ListModelMixin, Resource):
    """List the backfills of a schedule, newest first."""

    queryset = Backfill.objects.defer("spec", "calendars")
    serializer_class = BackfillSummary
    filterset_class = BackfillFilters
    orderings = ("-id", "id")
    needs: ClassVar[Mapping[str, str]] = {"list": "schedules.view_backfill", "create": permissions.RUN}

    @extend_schema(
        request=NewBackfill,
        parameters=[IDEMPOTENCY_KEY],
        responses={200: BackfillDryRunSerializer, **accepted(AcceptedBackfillSerializer)},
    )
    def create(self, request: Request, schedule_id: str) -> Response:
        """Start a backfill: run a schedule for scheduled times in the past.

        With `dry_run`, nothing is started, and the response (200) describes what would run.
        """
        read = self.read(NewBackfill)
        if read.pop("dry_run", False):
            return self._survey(read)
        if (previous := self.previous_response()) is not None:
            return previous
        # The times are counted outside the transaction of `once`, which blocks all other writers on SQLite.
        backfill = Backfill.objects.counted(self.schedule, **read, initiator=self.by, now=self.now)
        return self.once(lambda: self._open(backfill))

    def _open(self, backfill: Backfill) -> Response:
        backfill.open()
        body = {"backfill": backfill.pk, "total": backfill.total}
        return self.accepted(body, url=reverse("api:backfill-detail", args=[backfill.pk]))

    def _survey(self, read: dict[str, Any]) -> Response:
        query = {name: read[name] for name in ("start_at", "end_at", "which")}
        survey = Backfill.objects.survey(self.schedule, **query, now=self.now, limit=TIMES_SHOWN)
        return Response(BackfillDryRunSerializer(survey).data)


class Backfills(ListedResource):
    """List the backfills of all schedules, newest first."""

    queryset = Backfill.objects.select_related("schedule").defer("spec", "calendars")
    serializer_class, row_class = BackfillSerializer, BackfillSummary
    filterset_class = BackfillFilters
    lookup_value_regex = "[0-9]{1,18}"
    needs: ClassVar[Mapping[str, str]] = {
        "list": "schedules.view_backfill",
        "retrieve": "schedules.view_backfill",
        "cancel": permissions.RUN,
    }

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a backfill and its progress."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=CancelBackfill, responses=performed(BackfillSerializer))
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel a backfill.

        Scheduled times that have not started yet do not run. Running executions continue.
        """
        reason = self.read(CancelBackfill).get("reason", "")
        backfill: Backfill = self.get_object()
        if not backfill.cancel(initiator=self.by, now=self.now, reason=reason):
            raise Problem(f"The backfill from {backfill} has already ended.", status_code=409)
        return self.respond_with(self.get_object())
