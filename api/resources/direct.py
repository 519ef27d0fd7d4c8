"""Direct requests, which run one step immediately and return its result."""

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
from .jobs import JobFields

LONGEST_WAIT = 60
# Many HTTP clients and proxies do not wait longer than this.
LONGEST_RUN = 600
USUAL_RUN = 60


class DirectRun(JobFields):
    timeout_seconds = serializers.IntegerField(
        min_value=1,
        max_value=LONGEST_RUN,
        default=USUAL_RUN,
        help_text="The time limit of the step, in seconds.",
    )
    wait_seconds = serializers.FloatField(
        min_value=0,
        max_value=LONGEST_WAIT,
        default=30,
        help_text="How many seconds to wait for a free seat in the pool.",
    )


class DirectResultSerializer(serializers.Serializer[Any]):
    status = ActivityState()
    has_failed = serializers.BooleanField(help_text="Whether the step failed.")
    message = serializers.CharField()
    error = serializers.CharField(help_text="Why the step failed. Empty if the step did not fail.")
    result = AnyJson(help_text="The value that the step returned.")
    activity = serializers.IntegerField(
        help_text="The id of the activity that contains the output and items of the step."
    )
    url = serializers.URLField(
        help_text="The URL of the activity that contains the output and items of the step."
    )


class Direct(Resource):
    """Direct requests, which run one step immediately and return its result."""

    serializer_class = DirectResultSerializer
    needs: ClassVar[Mapping[str, str]] = {"create": RUN}

    @extend_schema(request=DirectRun, responses={200: DirectResultSerializer, **problems(409, 415)})
    def create(self, request: Request) -> Response:
        """Run one step immediately, ahead of the queue, and return its result.

        The response is 200 even if the step fails, so check `has_failed`. Each pool serves one direct request
        at a time. Other direct requests wait for up to `wait_seconds`. If that is not enough, the response is
        409 with a Retry-After header. Idempotency keys are not supported: repeating the request runs the step
        again.
        """
        read = self.read(DirectRun)
        wait = read.pop("wait_seconds")
        step = named(read)
        try:
            answer = direct.run(step, initiator=self.by, timeout_seconds=wait, may=self.may)
        except direct.Busy as busy:
            raise _seat_problem(busy, "busy", busy.retry_after) from busy
        except direct.TimedOut as late:
            raise _seat_problem(late, "no-seat", 1) from late
        except direct.Lost as lost:
            raise Problem(_sentence(lost), status_code=409, code="seat-lost") from lost
        return Response(self._body(answer))

    def _body(self, answer: direct.DirectResult) -> dict[str, Any]:
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


def _seat_problem(why: Exception, code: str, seconds: int) -> Problem:
    headers = {"Retry-After": str(seconds)}
    return Problem(_sentence(why), status_code=409, code=code, headers=headers)


def _sentence(why: Exception) -> str:
    return f"The direct request failed: {why}."
