"""Questions about schedules, also about ones that nobody has saved yet."""

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
from .definitions import SpecField, UpcomingSerializer

MOST_TIMES = 100
USUAL_TIMES = 10
COUNT = OpenApiParameter(
    "count",
    {"type": "integer", "minimum": 1, "maximum": MOST_TIMES, "default": USUAL_TIMES},
    description="How many times.",
)
AT = OpenApiParameter(
    "at",
    OpenApiTypes.STR,
    required=True,
    description="Such as `2026-12-01T09:00:00Z`; without an offset, on the clock of the schedule.",
    examples=[OpenApiExample("A time", "2026-12-01T09:00:00Z")],
)


@extend_schema_serializer(
    examples=[OpenApiExample("A spec", {"spec": {"cron": ["30 2 * * *"], "time_zone": "Europe/London"}})]
)
class PreviewWriting(Strict[Any]):
    spec = SpecField()
    count = serializers.IntegerField(min_value=1, max_value=MOST_TIMES, required=False)
    name = serializers.CharField(
        max_length=200,
        required=False,
        help_text="Of a schedule that is not saved yet: its jitter follows from it.",
    )
    schedule = serializers.IntegerField(
        min_value=1, max_value=2**63 - 1, required=False, help_text="The schedule that would be edited."
    )


class DifferenceSerializer(serializers.Serializer[Any]):
    gone = serializers.ListField(child=serializers.DateTimeField())
    added = serializers.ListField(child=serializers.DateTimeField())


class PreviewSerializer(serializers.Serializer[Any]):
    sentence = serializers.CharField()
    time_zone = serializers.CharField()
    upcoming = UpcomingSerializer(many=True)
    warnings = serializers.ListField(child=serializers.CharField(), help_text="What may surprise.")
    difference = DifferenceSerializer(
        allow_null=True, help_text="Of a schedule that would be edited: its times that would change."
    )


class WhySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    local = serializers.CharField()
    sentence = serializers.CharField()
    occurrence = serializers.IntegerField(allow_null=True)
    execution = serializers.IntegerField(allow_null=True)


class Inquiries(Resource):
    parameters = {"preview": ("count",), "why": ("at",)}

    @extend_schema(parameters=[COUNT], responses={200: PreviewSerializer, **problems(409)}, filters=False)
    @action(detail=True, pagination_class=None)
    def preview(self, request: Request, pk: str) -> Response:
        """Its next times, with what changes of the clocks do to them; not those left out on request."""
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
        request=PreviewWriting,
        responses={200: PreviewSerializer, **problems(404, 415)},
    )
    @action(detail=False, methods=["post"], url_path="preview", url_name="preview-spec")
    def preview_spec(self, request: Request) -> Response:
        """What a spec would do, before it is saved: the sentence, the next times, what may surprise."""
        read = self.read(PreviewWriting)
        schedule = Schedule.objects.get(pk=read["schedule"]) if "schedule" in read else None
        with preview_effort(request) as effort:
            shown = self._preview(read, schedule, effort)
        return Response(PreviewSerializer(shown).data)

    def _preview(self, read: dict[str, Any], schedule: Schedule | None, effort: Effort) -> Preview:
        count = read.get("count", USUAL_TIMES)
        seed = read.get("name", "") if schedule is None else schedule.jitter_seed
        try:
            return preview(
                read["spec"], count=count, now=self.now, seed=seed, instead_of=schedule, effort=effort
            )
        except SpecError as error:
            raise ValidationError({"spec": str(error)}) from error

    @extend_schema(parameters=[AT], responses=WhySerializer, filters=False)
    @action(detail=True, pagination_class=None)
    def why(self, request: Request, pk: str) -> Response:
        """Why it ran at a time, or did not, or whether it will."""
        schedule: Schedule = self.get_object()
        return Response(schedule.why(asked_time(request), now=self.now).as_json())


def _notes(schedule: Schedule) -> list[str]:
    try:
        return list(schedule.compiled_spec.notes)
    except SpecError as error:  # of a closed one, which nobody can mend any more
        return [str(error)]


def asked_time(request: Request) -> datetime:
    """A plus sign that nobody escaped arrives as a space."""
    text = re.sub(r" (?=[0-9]{2}:?[0-9]{2}$)", "+", request.query_params.get("at", ""))
    try:
        return clock_reading("", text)
    except SpecError as error:
        raise ValidationError({"at": error.message}) from error
