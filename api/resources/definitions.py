"""Serializers of schedules: their definition, their state and their overview."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from api.permissions import can
from api.reading import Strict
from schedules.description import state_of
from schedules.models import MAX_STEPS, Schedule, Step
from schedules.models.schedule import LONGEST_NOTE

from .attempts import AnyJson
from .examples import SCHEDULE, SPEC

MOST_USERS = 100
STATES = ("active", "paused", "closed", "broken", "ended", "by hand")


@extend_schema_field(SPEC)
class SpecField(serializers.JSONField):
    """The spec of a schedule, which the model validates."""


@extend_schema_field({"type": "object", "additionalProperties": True})
class ObjectField(serializers.JSONField):
    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise serializers.ValidationError("Enter a JSON object.")
        return super().to_internal_value(data)


class WordsField(serializers.ListField):
    child = serializers.CharField(trim_whitespace=False)


class MemoField(serializers.DictField):
    child = serializers.CharField(allow_blank=True, trim_whitespace=False)


class ScheduleReferenceSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()


@extend_schema_field(ScheduleReferenceSerializer(many=True, allow_null=True))
class UsedByField(serializers.Field[Any, Any, Any, Any]):
    """The schedules that use an object; null for callers who do not have permission to view schedules."""

    def __init__(self, which: str) -> None:
        words = (
            f"Active and paused schedules {which}, at most {MOST_USERS}. Null if you do not have permission"
        )
        super().__init__(source="*", read_only=True, help_text=f"{words} to view schedules.")

    def to_representation(self, used: Any) -> Any:
        if not can(self.context["request"], "schedules.view_schedule"):
            return None
        return ScheduleReferenceSerializer(used.used_by()[:MOST_USERS], many=True).data


# The fields that steps and templates have in common. This is a comment because the API's schema would show a
# docstring of this base class in the description of its subclasses.
class TaskSerializer(Strict[Any]):
    config = ObjectField(
        required=False,
        help_text="The settings of the step, which depend on the step type, such as `url` for `http`.",
    )
    retry_on = WordsField(
        required=False,
        max_length=10,
        help_text="Retry only if the error contains one of these texts. If empty, retry after any error.",
    )
    resources = WordsField(
        required=False,
        max_length=10,
        help_text="Names of resources that the step uses, such as `connected-system:7`. A limit can restrict "
        "how many tasks use a resource at once.",
    )


class StepSerializer(TaskSerializer, serializers.ModelSerializer[Step]):
    """A step of a schedule. Steps with the same index run in parallel."""

    step_type = serializers.CharField(
        max_length=40,
        required=False,
        help_text="The step type, such as `python`, `http` or `sql`. Leave this field out if `template` is "
        "set.",
    )
    template = serializers.CharField(
        max_length=200,
        required=False,
        help_text="The name of the template of the step. Other fields of the step override the values of the "
        "template.",
    )

    class Meta:
        model = Step
        fields = (*Step.FIELDS, "template")


class ScheduleFields(serializers.ModelSerializer[Schedule]):
    """The editable fields of a schedule."""

    tags = WordsField(required=False, max_length=50)
    memo = MemoField(
        required=False, help_text="Names and values of your own. They have no effect on the schedule."
    )
    spec = SpecField(required=False)
    topics = WordsField(
        required=False,
        max_length=20,
        help_text="Topics that start the schedule. Each new event in one of these topics starts a run.",
    )

    class Meta:
        model = Schedule
        fields = Schedule.EDITABLE


@extend_schema_serializer(examples=[SCHEDULE])
class ScheduleDefinition(Strict[Any], ScheduleFields):
    steps = StepSerializer(many=True, min_length=1, max_length=MAX_STEPS)  # type: ignore[call-arg]

    class Meta(ScheduleFields.Meta):
        fields = (*Schedule.EDITABLE, "steps")  # type: ignore[assignment]


@extend_schema_serializer(examples=[SCHEDULE])
class NewSchedule(ScheduleDefinition):
    paused = serializers.BooleanField(
        required=False, help_text="Whether the schedule is paused when it is created."
    )
    note = serializers.CharField(
        max_length=LONGEST_NOTE, allow_blank=True, required=False, help_text="The reason for the pause."
    )

    class Meta(ScheduleFields.Meta):
        fields = (*Schedule.EDITABLE, "steps", "paused", "note")  # type: ignore[assignment]


class SchedulePauseSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField(source="paused_at", allow_null=True)
    until = serializers.DateTimeField(source="paused_until", allow_null=True)
    note = serializers.CharField(source="pause_note", allow_blank=True)


class ScheduleCountersSerializer(serializers.Serializer[Any]):
    """How often runs of the schedule started, failed or did not start."""

    started = serializers.IntegerField(source="started_count")
    skipped = serializers.IntegerField(source="skipped_count")
    skipped_by_reason = serializers.DictField(source="skipped_reasons", child=serializers.IntegerField())
    missed = serializers.IntegerField(source="missed_count")
    dropped = serializers.IntegerField(source="dropped_count")
    failed = serializers.IntegerField(source="failed_count")
    failures_in_a_row = serializers.IntegerField()


class ScheduleStateSerializer(serializers.Serializer[Any]):
    """The state of a schedule. Only runs, and actions such as `pause`, change the state."""

    status = serializers.ChoiceField(choices=Schedule.Status.choices)
    summary = serializers.SerializerMethodField(
        help_text="The status in more detail: `broken` if the spec is invalid, `ended` if no scheduled times "
        "or runs are left, `by hand` if the schedule runs only on request. In all other cases, the same as "
        "`status`."
    )
    sentence = serializers.CharField(
        source="spec_in_words", help_text="A description of the scheduled times in words."
    )
    time_zone = serializers.CharField(source="zone.key")
    next_run_at = serializers.DateTimeField(allow_null=True)
    is_overdue = serializers.SerializerMethodField(
        help_text="Whether a scheduled time has passed, but no scheduler has processed it."
    )
    spec_error = serializers.CharField(
        allow_blank=True, help_text="Why the spec is invalid. Empty if the spec is valid."
    )
    pause = serializers.SerializerMethodField()
    skips = serializers.SerializerMethodField(
        help_text="Future scheduled times that will be skipped because of requests to `skip-next`."
    )
    last_run_at = serializers.DateTimeField(allow_null=True)
    last_outcome = serializers.CharField(allow_blank=True)
    last_failure = serializers.CharField(allow_blank=True)
    counters = ScheduleCountersSerializer(source="*")

    @extend_schema_field({"type": "string", "enum": list(STATES)})
    def get_summary(self, schedule: Schedule) -> str:
        return state_of(schedule)

    def get_is_overdue(self, schedule: Schedule) -> bool:
        return schedule.is_overdue(self.context["view"].now)

    @extend_schema_field(SchedulePauseSerializer(allow_null=True))
    def get_pause(self, schedule: Schedule) -> Mapping[str, Any] | None:
        return SchedulePauseSerializer(schedule).data if schedule.is_paused else None

    @extend_schema_field({"type": "array", "items": {"type": "string", "format": "date-time"}})
    def get_skips(self, schedule: Schedule) -> list[str]:
        return sorted(schedule.skips)


class ScheduleSummary(ScheduleFields):
    state = ScheduleStateSerializer(source="*", read_only=True)

    class Meta(ScheduleFields.Meta):
        fields = ("id", "token", *Schedule.EDITABLE, "state")  # type: ignore[assignment]
        read_only_fields = ("id", "token")


class UpcomingTimeSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    local = serializers.SerializerMethodField(
        help_text="The time in `at`, shown in the time zone of the schedule."
    )
    due_at = serializers.DateTimeField(
        help_text="The earliest time at which the run can start: the scheduled time plus jitter."
    )
    note = serializers.CharField(
        allow_blank=True,
        help_text="How a daylight saving time change affects this time. Empty if the time is not affected.",
    )

    @extend_schema_field({"type": "string", "format": "date-time"})
    def get_local(self, row: Any) -> str:
        return str(row.local.isoformat())


class RunningExecutionSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    source = serializers.CharField()  # type: ignore[assignment]
    nominal_at = serializers.DateTimeField(allow_null=True)
    since = serializers.DateTimeField()
    is_late = serializers.BooleanField()
    is_cancelling = serializers.BooleanField()


class RecentResultSerializer(serializers.Serializer[Any]):
    execution = serializers.IntegerField(source="execution_id")
    source = serializers.CharField()  # type: ignore[assignment]
    nominal_at = serializers.DateTimeField(allow_null=True)
    started_at = serializers.DateTimeField()
    outcome = serializers.CharField()
    seconds = serializers.SerializerMethodField()
    error = serializers.CharField(allow_blank=True)

    def get_seconds(self, result: Any) -> float:
        return float(result.duration.total_seconds())


class BackfillProgressSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    total = serializers.IntegerField()
    passed = serializers.IntegerField()
    added = serializers.IntegerField()
    waiting = serializers.IntegerField()


class ScheduleOverviewSerializer(serializers.Serializer[Any]):
    """The running, recent and upcoming runs of a schedule, and its backfills."""

    buffered = serializers.IntegerField(
        source="counters.buffered", help_text="Number of occurrences that are waiting to start."
    )
    running = RunningExecutionSerializer(many=True)
    results = RecentResultSerializer(many=True, help_text="The last executions that ended, newest first.")
    upcoming = UpcomingTimeSerializer(many=True)
    backfills = BackfillProgressSerializer(many=True)
    paused_by = serializers.SerializerMethodField(
        help_text="Who paused the schedule. Empty if the schedule is not paused."
    )
    last_result = AnyJson(help_text="The result of the last completed execution.")

    def get_paused_by(self, description: Any) -> str:
        return description.pause.by if description.pause else ""


class ScheduleSerializer(ScheduleSummary):
    steps = serializers.SerializerMethodField()
    overview = serializers.SerializerMethodField()

    class Meta(ScheduleFields.Meta):
        fields = ("id", "token", *Schedule.EDITABLE, "steps", "state", "overview")  # type: ignore[assignment]
        read_only_fields = ("id", "token")

    @extend_schema_field(StepSerializer(many=True))
    def get_steps(self, schedule: Schedule) -> list[dict[str, Any]]:
        return [step.written() for step in schedule.steps.all()]

    @extend_schema_field(ScheduleOverviewSerializer)
    def get_overview(self, schedule: Schedule) -> Mapping[str, Any]:
        return ScheduleOverviewSerializer(schedule.describe(now=self.context["view"].now)).data
