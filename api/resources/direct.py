from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.errors import Problem
from api.schema import problems
from execution import direct
from execution.models.adhoc import named
from schedules.permissions import RUN

from .attempts import ActivityState, AnyJson
from .base import Resource
from .jobs import StepWriting

LONGEST_WAIT = 60
# Whoever asks over HTTP does not wait for ever; neither does what is between us.
LONGEST_RUN = 600
USUAL_RUN = 60


class DirectRequest(StepWriting):
    timeout_seconds = serializers.IntegerField(
        min_value=1, max_value=LONGEST_RUN, default=USUAL_RUN, help_text="Of the step, once it runs."
    )
    wait_seconds = serializers.FloatField(
        min_value=0, max_value=LONGEST_WAIT, default=30, help_text="For a free seat of its pool."
    )


class DirectAnswerSerializer(serializers.Serializer[Any]):
    status = ActivityState()
    has_failed = serializers.BooleanField()
    message = serializers.CharField()
    error = serializers.CharField()
    result = AnyJson()
    activity = serializers.IntegerField(help_text="Its record, with its output and items.")
    url = serializers.URLField()


class Direct(Resource):
    """Runs one step at once, before everything queued, and answers with its outcome."""

    serializer_class = DirectAnswerSerializer
    needs: ClassVar[Mapping[str, str]] = {"create": RUN}

    @extend_schema(request=DirectRequest, responses={200: DirectAnswerSerializer, **problems(409, 415)})
    def create(self, request: Request) -> Response:
        """Runs one step at once, before everything queued, and answers with its outcome.

        A step that fails is an answer like any other: look at `has_failed`. One direct request at a time has
        the next seat of a pool; another one waits, and is then told to come back (409 with Retry-After).
        There is no Idempotency-Key: what is asked for is carried out.
        """
        read = self.read(DirectRequest)
        wait = read.pop("wait_seconds")
        step = named(read)
        try:
            answer = direct.run(step, initiator=self.by, timeout_seconds=wait, may=self.may)
        except direct.Busy as busy:
            raise _taken(busy, "busy", busy.retry_after) from busy
        except direct.TimedOut as late:
            raise _taken(late, "no-seat", 1) from late
        except direct.Lost as lost:
            raise Problem(_sentence(lost), status_code=409, code="seat-lost") from lost
        return Response(self._body(answer))

    def _body(self, answer: direct.Answer) -> dict[str, Any]:
        outcome, url = answer.outcome, reverse("api:activity-detail", args=[answer.activity_id])
        return {
            "status": outcome.status,
            "has_failed": answer.has_failed,
            "message": outcome.message,
            "error": outcome.error,
            "result": outcome.result,
            "activity": answer.activity_id,
            "url": self.request.build_absolute_uri(url),
        }


def _taken(why: Exception, code: str, seconds: int) -> Problem:
    headers = {"Retry-After": str(seconds)}
    return Problem(_sentence(why), status_code=409, code=code, headers=headers)


def _sentence(why: Exception) -> str:
    text = str(why)
    return f"Not run: {text}." if text else "Its seat was given to others."
