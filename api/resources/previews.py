"""Previews of the times of schedules, and explanations of why a schedule ran or did not run."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.paging import limit_of
from api.reading import Strict
from api.schema import problems
from api.throttling import preview_effort
from schedules.models import Schedule
from schedules.previews import Preview, preview
from schedules.spec import SpecError
from schedules.spec.moments import clock_reading
from schedules.spec.timeline import TOO_MUCH, Effort

from .base import Resource
from .definitions import SpecField, UpcomingTimeSerializer

MOST_TIMES = 100
USUAL_TIMES = 10
COUNT = OpenApiParameter(
    "count",
    {"type": "integer", "minimum": 1, "maximum": MOST_TIMES, "default": USUAL_TIMES},
    description="How many of the next scheduled times to return.",
)
AT = OpenApiParameter(
    "at",
    OpenApiTypes.STR,
    required=True,
    description="The time to explain, such as `2026-12-01T09:00:00Z`. A time without a UTC offset is read in "
    "the time zone of the schedule.",
    examples=[OpenApiExample("A time", "2026-12-01T09:00:00Z")],
)


@extend_schema_serializer(
    examples=[OpenApiExample("A spec", {"spec": {"cron": ["30 2 * * *"], "time_zone": "Europe/London"}})]
)
class SpecPreview(Strict[Any]):
    spec = SpecField()
    count = serializers.IntegerField(
        min_value=1,
        max_value=MOST_TIMES,
        required=False,
        help_text="How many of the next scheduled times to return.",
    )
    name = serializers.CharField(
        max_length=200,
        required=False,
        help_text="For a new schedule, its name. The name determines the jitter of each scheduled time.",
    )
    schedule = serializers.IntegerField(
        min_value=1,
        max_value=2**63 - 1,
        required=False,
        help_text="For an edit, the id of the schedule. The response then shows how the scheduled times "
        "would change.",
    )


class ChangedTimesSerializer(serializers.Serializer[Any]):
    gone = serializers.ListField(
        child=serializers.DateTimeField(), help_text="Scheduled times that the edit would remove."
    )
    added = serializers.ListField(
        child=serializers.DateTimeField(), help_text="Scheduled times that the edit would add."
    )


class PreviewSerializer(serializers.Serializer[Any]):
    sentence = serializers.CharField(help_text="A description of the scheduled times in words.")
    time_zone = serializers.CharField()
    upcoming = UpcomingTimeSerializer(many=True)
    warnings = serializers.ListField(
        child=serializers.CharField(), help_text="Effects of the spec that might be unexpected."
    )
    difference = ChangedTimesSerializer(
        allow_null=True,
        help_text="How an edit would change the scheduled times. Null if the request names no schedule, or "
        "if the comparison would take too long.",
    )


class TimeExplanationSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    local = serializers.CharField(help_text="The time in `at`, shown in the time zone of the schedule.")
    sentence = serializers.CharField(
        help_text="Why the schedule ran or did not run at this time, or whether it will run then."
    )
    occurrence = serializers.IntegerField(allow_null=True)
    execution = serializers.IntegerField(allow_null=True)


class PreviewActions(Resource):
    parameters = {"preview": ("count",), "why": ("at",)}

    @extend_schema(parameters=[COUNT], responses={200: PreviewSerializer, **problems(409)}, filters=False)
    @action(detail=True, pagination_class=None)
    def preview(self, request: Request, pk: str) -> Response:
        """Preview the next scheduled times of a schedule.

        Times that are marked to be skipped with `skip-next` are not included.
        """
        schedule: Schedule = self.get_object()
        count = limit_of(request, USUAL_TIMES, name="count", most=MOST_TIMES)
        with preview_effort(request) as effort:
            upcoming = schedule.upcoming(count, now=self.now, effort=effort)
        body = {
            "sentence": schedule.spec_in_words,
            "time_zone": schedule.zone.key,
            "upcoming": upcoming,
            "warnings": [*_notes(schedule), *[f"exclude: {TOO_MUCH}"] * effort.is_spent],
            "difference": None,
        }
        return Response(PreviewSerializer(body).data)

    @extend_schema(
        operation_id="schedules_preview_spec",
        request=SpecPreview,
        responses={200: PreviewSerializer, **problems(404, 415)},
    )
    @action(detail=False, methods=["post"], url_path="preview", url_name="preview-spec")
    def preview_spec(self, request: Request) -> Response:
        """Preview a spec before saving it."""
        read = self.read(SpecPreview)
        schedule = Schedule.objects.get(pk=read["schedule"]) if "schedule" in read else None
        with preview_effort(request) as effort:
            result = self._preview(read, schedule, effort)
        return Response(PreviewSerializer(result).data)

    def _preview(self, read: dict[str, Any], schedule: Schedule | None, effort: Effort) -> Preview:
        count = read.get("count", USUAL_TIMES)
        seed = read.get("name", "") if schedule is None else schedule.jitter_seed
        try:
            return preview(
                read["spec"], count=count, now=self.now, seed=seed, instead_of=schedule, effort=effort
            )
        except SpecError as error:
            raise ValidationError({"spec": str(error)}) from error

    @extend_schema(parameters=[AT], responses=TimeExplanationSerializer, filters=False)
    @action(detail=True, pagination_class=None)
    def why(self, request: Request, pk: str) -> Response:
        """Explain why a schedule did or did not run at a given time, or whether it will run then."""
        schedule: Schedule = self.get_object()
        return Response(schedule.why(asked_time(request), now=self.now).as_json())


def _notes(schedule: Schedule) -> list[str]:
    try:
        return list(schedule.compiled_spec.notes)
    except SpecError as error:  # possible in closed schedules, which can no longer be edited
        return [str(error)]


def asked_time(request: Request) -> datetime:
    """Return the time in the query parameter `at`.

    The space before a UTC offset is read as a plus sign, because an unescaped plus sign arrives as a space.
    """
    text = re.sub(r" (?=[0-9]{2}:?[0-9]{2}$)", "+", request.query_params.get("at", ""))
    try:
        return clock_reading("", text)
    except SpecError as error:
        raise ValidationError({"at": error.message}) from error
