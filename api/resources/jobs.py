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
    """The fields of a single job. The models validate the values and set the defaults."""

    elsewhere: ClassVar = dict.fromkeys(OF_GROUPS, ALONE)

    template = serializers.CharField(
        max_length=200,
        required=False,
        help_text="The name of a template. The template provides the values of fields that are left out.",
    )
    step_type = serializers.CharField(
        max_length=40,
        required=False,
        help_text="The step type, such as `http`, `sql` or `python`. Leave this field out if `template` is "
        "set.",
    )
    config = serializers.DictField(
        required=False,
        help_text="The settings of the job, which depend on the step type, such as `url` for `http`.",
    )
    name = serializers.CharField(
        max_length=200,
        required=False,
        help_text="The name of the job. The default is the name of the template or step type.",
    )
    timeout_seconds = serializers.IntegerField(
        min_value=1,
        max_value=YEAR_SECONDS,
        required=False,
        help_text="The time limit of each attempt, in seconds.",
    )
    pool = serializers.CharField(max_length=40, required=False, help_text="The pool in which the job runs.")
    resources = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Names of resources that the job uses, such as `connected-system:7`. A limit can restrict "
        "how many tasks use a resource at once.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "template" in attrs and "step_type" in attrs:
            raise serializers.ValidationError(
                {"step_type": "Send either “template” or “step_type”, not both."}
            )
        if "template" not in attrs and "step_type" not in attrs:
            raise serializers.ValidationError({"step_type": "Send either “template” or “step_type”."})
        return attrs


class NewJob(JobFields):
    elsewhere: ClassVar = JobFields.elsewhere | {
        "idempotency_key": "Send the Idempotency-Key header instead of this field."
    }
    priority = serializers.IntegerField(
        min_value=-MOST_PRIORITY,
        max_value=MOST_PRIORITY,
        required=False,
        help_text="In each pool, jobs with a higher priority start first.",
    )
    max_failed_percent = serializers.IntegerField(
        min_value=0,
        max_value=100,
        required=False,
        help_text="If more than this percentage of the items fail, the job counts as failed.",
    )
    max_retries = serializers.IntegerField(
        min_value=0, required=False, help_text="The maximum number of automatic retries after failures."
    )
    retry_seconds = serializers.IntegerField(
        min_value=0, required=False, help_text="The delay before the first retry, in seconds."
    )
    retry_factor = serializers.FloatField(
        required=False,
        help_text="The delay before each further retry is the previous delay multiplied by this factor.",
    )
    retry_cap_seconds = serializers.IntegerField(
        min_value=0,
        required=False,
        help_text="The longest delay before a retry, in seconds. If `retry_seconds` is longer, every retry "
        "waits `retry_seconds` instead.",
    )
    retry_jitter = serializers.IntegerField(
        min_value=0,
        required=False,
        help_text="Each delay is extended by a random amount, up to this percentage of the delay.",
    )
    retry_on = serializers.ListField(
        child=serializers.CharField(),
        required=False,
        help_text="Retry only if the error contains one of these texts. If empty, retry after any error.",
    )
    on_crash = serializers.ChoiceField(
        choices=Step.OnCrash.choices,
        required=False,
        help_text="What to do if the worker that runs the job is lost.",
    )
    position = serializers.IntegerField(
        min_value=-FARTHEST_POSITION,
        max_value=FARTHEST_POSITION,
        required=False,
        help_text="Among jobs with the same priority, jobs with a lower position start first.",
    )
    available_at = serializers.DateTimeField(
        required=False, help_text="The earliest time at which the job can start."
    )
    dedup_key = serializers.CharField(
        max_length=LONGEST_KEY,
        required=False,
        help_text="While another job with the same key has not ended, this job is not queued, but recorded "
        "as skipped.",
    )
