"""Schedules that are paused and resumed together: all of them, or those with certain tags."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.reading import Strict
from api.schema import acts
from schedules.models import Schedule, ScheduleQuerySet
from schedules.models.labels import LONGEST_TAG, MOST_TAGS
from schedules.models.schedule import LONGEST_NOTE

from .base import Resource

TAGS = "Only schedules with all of these tags; without it, all schedules."
MISSED = [("catch_up", "catch_up"), ("discard", "discard")]


class ResumeWriting(Strict[Any]):
    missed = serializers.ChoiceField(
        choices=MISSED,
        required=False,
        help_text="Times that passed meanwhile: started by catch-up window and overlap policy, or skipped.",
    )


class Tagged(Strict[Any]):
    tags = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_TAG),
        max_length=MOST_TAGS,
        required=False,
        help_text=TAGS,
    )


class PauseAllWriting(Tagged):
    note = serializers.CharField(
        max_length=LONGEST_NOTE, allow_blank=True, required=False, help_text="Why they are paused."
    )


class ResumeAllWriting(Tagged, ResumeWriting):
    pass


class PausedSerializer(serializers.Serializer[Any]):
    paused = serializers.IntegerField(help_text="How many schedules this request paused.")
    left = serializers.IntegerField(help_text="How many were paused already, and keep their own pause.")


class ResumedSerializer(serializers.Serializer[Any]):
    resumed = serializers.IntegerField(help_text="How many schedules this request resumed.")
    left = serializers.IntegerField(help_text="How many stay paused, as they have a pause of their own.")


class Together(Resource):
    @extend_schema(request=PauseAllWriting, responses=acts(PausedSerializer))
    @action(detail=False, methods=["post"], url_path="pause-all", url_name="pause-all")
    def pause_all(self, request: Request) -> Response:
        """Pause all schedules, or all with certain tags.

        Automatic runs wait, their times are still recorded, and what is running goes on. Schedules that are
        paused already keep their own pause. To repeat the request changes nothing more.
        """
        read = self.read(PauseAllWriting)
        chosen = Schedule.objects.chosen_by(read.get("tags", ()))
        left = _paused(chosen)
        count = chosen.pause_all(initiator=self.by, now=self.now, **read)
        return Response({"paused": count, "left": left})

    @extend_schema(request=ResumeAllWriting, responses=acts(ResumedSerializer))
    @action(detail=False, methods=["post"], url_path="resume-all", url_name="resume-all")
    def resume_all(self, request: Request) -> Response:
        """Resume the schedules that were paused together by the same selection.

        Those that were paused by name, by other tags or after failures stay paused.
        """
        read = self.read(ResumeAllWriting)
        discard, tags = read.get("missed") == "discard", read.get("tags", ())
        chosen = Schedule.objects.chosen_by(tags)
        count = chosen.resume_all(initiator=self.by, now=self.now, discard=discard, tags=tags)
        return Response({"resumed": count, "left": _paused(chosen)})


def _paused(schedules: ScheduleQuerySet) -> int:
    return schedules.filter(status=Schedule.Status.PAUSED).count()
