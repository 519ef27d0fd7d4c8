"""The fields of a single job that is queued or run directly."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from api.reading import Strict
from execution.models.adhoc import ALONE, FARTHEST_POSITION, LONGEST_KEY, OF_GROUPS
from execution.models.task import MOST_PRIORITY
from schedules.models import Step
from schedules.models.definition import YEAR_SECONDS


class JobFields(Strict[Any]):
    """The fields of a single step. The models validate the values and set the defaults."""

    elsewhere: ClassVar = dict.fromkeys(OF_GROUPS, ALONE)

    template = serializers.CharField(
        max_length=200,
        required=False,
        help_text="The name of a template. It provides the values of the fields that are left out.",
    )
    step_type = serializers.CharField(
        max_length=40,
        required=False,
        help_text="A step type, such as `http`, `sql` or `python`. Leave it out if `template` is set.",
    )
    config = serializers.DictField(required=False, help_text="The settings of the step type.")
    name = serializers.CharField(
        max_length=200, required=False, help_text="The default is the name of the template or step type."
    )
    timeout_seconds = serializers.IntegerField(
        min_value=1, max_value=YEAR_SECONDS, required=False, help_text="The time limit of each attempt."
    )
    pool = serializers.CharField(max_length=40, required=False, help_text="The pool to queue the job in.")
    resources = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="The resources that the job uses. Limits can restrict how many tasks use a resource.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "template" in attrs and "step_type" in attrs:
            raise serializers.ValidationError(
                {"step_type": "Send either “template” or “step_type”, not both."}
            )
        if "template" not in attrs and "step_type" not in attrs:
            raise serializers.ValidationError({"step_type": "Send “template” or “step_type”."})
        return attrs


class NewJob(JobFields):
    elsewhere: ClassVar = JobFields.elsewhere | {
        "idempotency_key": "Send the header Idempotency-Key instead of this field."
    }
    priority = serializers.IntegerField(
        min_value=-MOST_PRIORITY,
        max_value=MOST_PRIORITY,
        required=False,
        help_text="Jobs with a higher priority start first.",
    )
    max_failed_percent = serializers.IntegerField(
        min_value=0,
        max_value=100,
        required=False,
        help_text="If a larger percentage of the items fails, the job counts as failed.",
    )
    max_retries = serializers.IntegerField(
        min_value=0, required=False, help_text="Number of retries after a failure."
    )
    retry_seconds = serializers.IntegerField(
        min_value=0, required=False, help_text="The delay before the first retry."
    )
    retry_factor = serializers.FloatField(
        required=False, help_text="The delay is multiplied by this factor for each further retry."
    )
    retry_cap_seconds = serializers.IntegerField(
        min_value=0, required=False, help_text="The longest delay before a retry."
    )
    retry_jitter = serializers.IntegerField(
        min_value=0, required=False, help_text="Random variation of the delay, in percent."
    )
    retry_on = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Retry only if the error contains one of these texts.",
    )
    on_crash = serializers.ChoiceField(
        choices=Step.OnCrash.choices, required=False, help_text="What to do if the worker is lost."
    )
    position = serializers.IntegerField(
        min_value=-FARTHEST_POSITION,
        max_value=FARTHEST_POSITION,
        required=False,
        help_text="Among jobs of the same priority, lower positions start first.",
    )
    available_at = serializers.DateTimeField(
        required=False, help_text="The job does not start before this time."
    )
    dedup_key = serializers.CharField(
        max_length=LONGEST_KEY,
        required=False,
        help_text="If a job with the same key has not ended yet, this job is recorded as skipped.",
    )
