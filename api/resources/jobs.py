"""How a job without a schedule is asked for: queued, or run at once."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from api.reading import Strict
from execution.models.adhoc import ALONE, FARTHEST_POSITION, LONGEST_KEY, OF_GROUPS
from execution.models.task import MOST_PRIORITY
from schedules.models import Step
from schedules.models.definition import YEAR_SECONDS


class StepWriting(Strict[Any]):
    """The fields of a step that stands alone; the models say which values make sense, and the defaults."""

    elsewhere: ClassVar = dict.fromkeys(OF_GROUPS, ALONE)

    template = serializers.CharField(
        max_length=200, required=False, help_text="A template, which says what is not said here."
    )
    step_type = serializers.CharField(
        max_length=40, required=False, help_text="Such as `http`, `sql`, `python`; without a template."
    )
    config = serializers.DictField(required=False, help_text="The settings of its step type.")
    name = serializers.CharField(
        max_length=200, required=False, help_text="By default that of its template or step type."
    )
    timeout_seconds = serializers.IntegerField(min_value=1, max_value=YEAR_SECONDS, required=False)
    pool = serializers.CharField(max_length=40, required=False)
    resources = serializers.ListField(child=serializers.CharField(), required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("template" in attrs) == ("step_type" in attrs):
            told = "Either a template or a step type is needed, not both."
            raise serializers.ValidationError({"step_type": told})
        return attrs


class JobWriting(StepWriting):
    elsewhere: ClassVar = StepWriting.elsewhere | {
        "idempotency_key": "A job has no such field: send the header Idempotency-Key with the request."
    }
    priority = serializers.IntegerField(
        min_value=-MOST_PRIORITY, max_value=MOST_PRIORITY, required=False, help_text="The highest goes first."
    )
    max_failed_percent = serializers.IntegerField(
        min_value=0,
        max_value=100,
        required=False,
        help_text="If more of its items fail, it completes with errors, which counts as a failure.",
    )
    max_retries = serializers.IntegerField(min_value=0, required=False)
    retry_seconds = serializers.IntegerField(min_value=0, required=False)
    retry_factor = serializers.FloatField(required=False)
    retry_cap_seconds = serializers.IntegerField(min_value=0, required=False)
    retry_jitter = serializers.IntegerField(min_value=0, required=False, help_text="Percent.")
    retry_on = serializers.ListField(child=serializers.CharField(), required=False)
    on_crash = serializers.ChoiceField(choices=Step.OnCrash.choices, required=False)
    position = serializers.IntegerField(
        min_value=-FARTHEST_POSITION,
        max_value=FARTHEST_POSITION,
        required=False,
        help_text="Among jobs of the same priority, the smaller goes first.",
    )
    available_at = serializers.DateTimeField(required=False, help_text="Not before this time.")
    dedup_key = serializers.CharField(
        max_length=LONGEST_KEY,
        required=False,
        help_text="While a job with the same key has not ended, this one is recorded as skipped.",
    )
