"""Occurrences of a schedule, and the base class of all resources that belong to one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

from django.shortcuts import get_object_or_404
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, MomentFilter, WholeFilter
from schedules.models import Occurrence, Schedule

from .base import ListedResource, Resource


class OccurrenceSerializer(serializers.ModelSerializer[Occurrence]):
    """A scheduled time, request or event that should start a run of a schedule, with the outcome."""

    execution = serializers.SerializerMethodField(
        help_text="The id of the execution of this occurrence. Null if no execution was started."
    )
    overlap = serializers.CharField(
        help_text="The overlap policy that was requested for this occurrence. If empty, the policy of the "
        "schedule applies."
    )
    initiator = serializers.CharField(source="initiator_name")

    class Meta:
        model = Occurrence
        fields = (
            "id",
            "schedule",
            "source",
            "status",
            "reason",
            "nominal_at",
            "planned_at",
            "due_at",
            "settled_at",
            "overlap",
            "execution",
            "blocked_by",
            "retry_of",
            "backfill",
            "initiator",
            "created_at",
        )
        read_only_fields = fields

    @extend_schema_field({"type": ["integer", "null"]})
    def get_execution(self, occurrence: Occurrence) -> int | None:
        execution = getattr(occurrence, "execution", None)
        return execution.pk if execution else None


class OccurrenceFilters(Filters):
    status = filters.ChoiceFilter(choices=Occurrence.Status.choices)
    source = filters.ChoiceFilter(choices=Occurrence.Source.choices)
    after = MomentFilter(
        field_name="nominal_at",
        lookup_expr="gte",
        help_text="Return only occurrences that are scheduled at or after this time.",
    )
    before = MomentFilter(
        field_name="nominal_at",
        lookup_expr="lt",
        help_text="Return only occurrences that are scheduled before this time.",
    )
    backfill = WholeFilter(
        field_name="backfill", help_text="Return only occurrences of the backfill with this id."
    )


class ScheduleResource(Resource):
    """A resource that belongs to one schedule."""

    @cached_property
    def schedule(self) -> Schedule:
        return get_object_or_404(Schedule, pk=self.kwargs["schedule_id"])

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        assert self.schedule

    def get_queryset(self) -> Any:
        rows = super().get_queryset()
        is_described = getattr(self, "swagger_fake_view", False)
        return rows.none() if is_described else rows.filter(schedule=self.schedule)


class Occurrences(ScheduleResource, ListedResource):
    """List the occurrences of a schedule: its past and pending times, requests and events, with outcomes."""

    queryset = Occurrence.objects.select_related("execution").only(
        *(field.name for field in Occurrence._meta.concrete_fields), "execution__id", "execution__occurrence"
    )
    serializer_class = OccurrenceSerializer
    filterset_class = OccurrenceFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-nominal_at", "nominal_at", "-id", "id")
    needs: ClassVar[Mapping[str, str]] = {
        "list": "schedules.view_occurrence",
        "retrieve": "schedules.view_occurrence",
    }

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve an occurrence."""
        return super().retrieve(request, *args, **kwargs)
