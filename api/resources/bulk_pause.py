"""Pausing and resuming all schedules, or all with certain tags, in one request."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.reading import Strict
from api.schema import performed
from schedules.models import Schedule, ScheduleQuerySet
from schedules.models.labels import LONGEST_TAG, MOST_TAGS
from schedules.models.schedule import LONGEST_NOTE

from .base import Resource

TAGS = (
    "Change only schedules that have all of these tags. If this field is left out, all schedules are changed."
)
MISSED = [("catch_up", "catch_up"), ("discard", "discard")]


class ResumeOptions(Strict[Any]):
    missed = serializers.ChoiceField(
        choices=MISSED,
        required=False,
        help_text="What to do with scheduled times that passed during the pause. `catch_up`, the default, "
        "runs those of these times that the catch-up window and the overlap policy allow. `discard` skips "
        "all of these times.",
    )


class TagSelection(Strict[Any]):
    tags = serializers.ListField(
        child=serializers.CharField(max_length=LONGEST_TAG),
        max_length=MOST_TAGS,
        required=False,
        help_text=TAGS,
    )


class PauseAllOptions(TagSelection):
    note = serializers.CharField(
        max_length=LONGEST_NOTE, allow_blank=True, required=False, help_text="The reason for the pause."
    )


class ResumeAllOptions(TagSelection, ResumeOptions):
    pass


class PauseAllResultSerializer(serializers.Serializer[Any]):
    paused = serializers.IntegerField(help_text="Number of schedules that this request paused.")
    left = serializers.IntegerField(
        help_text="Number of schedules left unchanged because they were already paused."
    )


class ResumeAllResultSerializer(serializers.Serializer[Any]):
    resumed = serializers.IntegerField(help_text="Number of schedules that this request resumed.")
    left = serializers.IntegerField(
        help_text="Number of schedules that stay paused because they were not paused by `pause-all` with the "
        "same tags."
    )


class BulkPauseActions(Resource):
    @extend_schema(request=PauseAllOptions, responses=performed(PauseAllResultSerializer))
    @action(detail=False, methods=["post"], url_path="pause-all", url_name="pause-all")
    def pause_all(self, request: Request) -> Response:
        """Pause all schedules, or all with certain tags.

        Running executions continue, but no automatic runs start. Scheduled times that pass meanwhile are
        recorded and can still run when the schedules are resumed. Schedules that are already paused keep
        their existing pause. Repeating the request changes nothing.
        """
        read = self.read(PauseAllOptions)
        chosen = Schedule.objects.chosen_by(read.get("tags", ()))
        left = _paused(chosen)
        count = chosen.pause_all(initiator=self.by, now=self.now, **read)
        return Response({"paused": count, "left": left})

    @extend_schema(request=ResumeAllOptions, responses=performed(ResumeAllResultSerializer))
    @action(detail=False, methods=["post"], url_path="resume-all", url_name="resume-all")
    def resume_all(self, request: Request) -> Response:
        """Resume the schedules that `pause-all` paused with the same tags.

        Schedules that were paused in any other way stay paused: individually, by `pause-all` with other tags,
        or automatically after failures.
        """
        read = self.read(ResumeAllOptions)
        discard, tags = read.get("missed") == "discard", read.get("tags", ())
        chosen = Schedule.objects.chosen_by(tags)
        count = chosen.resume_all(initiator=self.by, now=self.now, discard=discard, tags=tags)
        return Response({"resumed": count, "left": _paused(chosen)})


def _paused(schedules: ScheduleQuerySet) -> int:
    return schedules.filter(status=Schedule.Status.PAUSED).count()
