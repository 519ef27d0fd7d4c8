"""Schedules as people write them, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from api.reading import Strict
from schedules.description import state_of
from schedules.models import MAX_STEPS, Schedule, Step
from schedules.models.schedule import LONGEST_NOTE

from .examples import SCHEDULE, SPEC

STATES = ("running", "paused", "closed", "broken", "ended", "by hand")


@extend_schema_field(SPEC)
class SpecField(serializers.JSONField):
    """When it runs; what is wrong with it, the schedule itself says."""


@extend_schema_field({"type": "object", "additionalProperties": True})
class ObjectField(serializers.JSONField):
    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            raise serializers.ValidationError("an object expected")
        return super().to_internal_value(data)


@extend_schema_field({})
class AnyField(serializers.JSONField):
    """Whatever a step has returned, or somebody has written."""


class WordsField(serializers.ListField):
    child = serializers.CharField(trim_whitespace=False)


class MemoField(serializers.DictField):
    child = serializers.CharField(allow_blank=True, trim_whitespace=False)


class StepShape(Strict[Any], serializers.ModelSerializer[Step]):
    """One line of a plan; steps with the same index run side by side."""

    step_type = serializers.CharField(
        max_length=40, required=False, help_text="Such as `python`, `http`, `sql`; not with a template."
    )
    config = ObjectField(required=False, help_text="The settings of its type.")
    retry_on = WordsField(
        required=False, max_length=10, help_text="Retry only errors with one of these texts."
    )
    resources = WordsField(required=False, max_length=10, help_text="What it uses, for limits.")
    template = serializers.CharField(
        max_length=200, required=False, help_text="The name of a template: all else overrides it."
    )

    class Meta:
        model = Step
        fields = (*Step.FIELDS, "template")


class ScheduleShape(serializers.ModelSerializer[Schedule]):
    """What a person has written."""

    tags = WordsField(required=False, max_length=50)
    memo = MemoField(required=False, help_text="Names and texts, for people.")
    spec = SpecField(required=False)
    topics = WordsField(required=False, max_length=20, help_text="Each event of these starts it.")

    class Meta:
        model = Schedule
        fields = Schedule.EDITABLE


@extend_schema_serializer(examples=[SCHEDULE])
class ScheduleDefinition(Strict[Any], ScheduleShape):
    steps = StepShape(many=True, min_length=1, max_length=MAX_STEPS)  # type: ignore[call-arg]

    class Meta(ScheduleShape.Meta):
        fields = (*Schedule.EDITABLE, "steps")  # type: ignore[assignment]


@extend_schema_serializer(examples=[SCHEDULE])
class NewSchedule(ScheduleDefinition):
    paused = serializers.BooleanField(required=False, help_text="Whether it waits for a resume at first.")
    note = serializers.CharField(
        max_length=LONGEST_NOTE, allow_blank=True, required=False, help_text="Why it is paused."
    )

    class Meta(ScheduleShape.Meta):
        fields = (*Schedule.EDITABLE, "steps", "paused", "note")  # type: ignore[assignment]


class PauseSerializer(serializers.Serializer[Any]):
    since = serializers.DateTimeField(source="paused_at", allow_null=True)
    until = serializers.DateTimeField(source="paused_until", allow_null=True)
    note = serializers.CharField(source="pause_note", allow_blank=True)


class CountersSerializer(serializers.Serializer[Any]):
    """Of all time."""

    started = serializers.IntegerField(source="started_count")
    skipped = serializers.IntegerField(source="skipped_count")
    skipped_by_reason = serializers.DictField(source="skipped_reasons", child=serializers.IntegerField())
    missed = serializers.IntegerField(source="missed_count")
    dropped = serializers.IntegerField(source="dropped_count")
    failed = serializers.IntegerField(source="failed_count")
    failures_in_a_row = serializers.IntegerField()


class StateSerializer(serializers.Serializer[Any]):
    """What has become of it; actions change it, not edits."""

    status = serializers.ChoiceField(choices=Schedule.Status.choices)
    summary = serializers.SerializerMethodField(
        help_text="The same for people: `broken` has a spec that cannot be read, `ended` has no time left."
    )
    sentence = serializers.CharField(source="spec_in_words", help_text="The spec in words.")
    time_zone = serializers.CharField(source="zone.key")
    next_run_at = serializers.DateTimeField(allow_null=True)
    is_overdue = serializers.SerializerMethodField(help_text="Its time has passed, and no scheduler saw it.")
    spec_error = serializers.CharField(allow_blank=True)
    pause = serializers.SerializerMethodField()
    skips = serializers.SerializerMethodField(help_text="Times to come that are left out on request.")
    last_run_at = serializers.DateTimeField(allow_null=True)
    last_outcome = serializers.CharField(allow_blank=True)
    last_failure = serializers.CharField(allow_blank=True)
    counters = CountersSerializer(source="*")

    @extend_schema_field({"type": "string", "enum": list(STATES)})
    def get_summary(self, schedule: Schedule) -> str:
        return state_of(schedule)

    def get_is_overdue(self, schedule: Schedule) -> bool:
        return schedule.is_overdue(self.context["view"].now)

    @extend_schema_field(PauseSerializer(allow_null=True))
    def get_pause(self, schedule: Schedule) -> Mapping[str, Any] | None:
        return PauseSerializer(schedule).data if schedule.is_paused else None

    @extend_schema_field({"type": "array", "items": {"type": "string", "format": "date-time"}})
    def get_skips(self, schedule: Schedule) -> list[str]:
        return sorted(schedule.skips)


class ScheduleListed(ScheduleShape):
    state = StateSerializer(source="*", read_only=True)

    class Meta(ScheduleShape.Meta):
        fields = ("id", "token", *Schedule.EDITABLE, "state")  # type: ignore[assignment]
        read_only_fields = ("id", "token")


class UpcomingSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    local = serializers.SerializerMethodField(help_text="On the clock of its time zone.")
    due_at = serializers.DateTimeField(help_text="When it starts: later by its jitter.")
    note = serializers.CharField(allow_blank=True, help_text="What a change of the clocks does to it.")

    @extend_schema_field({"type": "string", "format": "date-time"})
    def get_local(self, row: Any) -> str:
        return str(row.local.isoformat())


class RunningSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    source = serializers.CharField()  # type: ignore[assignment]
    nominal_at = serializers.DateTimeField(allow_null=True)
    since = serializers.DateTimeField()
    is_late = serializers.BooleanField()
    is_cancelling = serializers.BooleanField()


class ResultSerializer(serializers.Serializer[Any]):
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


class OverviewSerializer(serializers.Serializer[Any]):
    """What goes on around it just now."""

    buffered = serializers.IntegerField(source="counters.buffered", help_text="Occurrences that wait.")
    running = RunningSerializer(many=True)
    results = ResultSerializer(many=True, help_text="The newest first.")
    upcoming = UpcomingSerializer(many=True)
    backfills = BackfillProgressSerializer(many=True)
    paused_by = serializers.SerializerMethodField()
    last_result = AnyField()

    def get_paused_by(self, description: Any) -> str:
        return description.pause.by if description.pause else ""


class ScheduleSerializer(ScheduleListed):
    steps = serializers.SerializerMethodField()
    overview = serializers.SerializerMethodField()

    class Meta(ScheduleShape.Meta):
        fields = ("id", "token", *Schedule.EDITABLE, "steps", "state", "overview")  # type: ignore[assignment]
        read_only_fields = ("id", "token")

    @extend_schema_field(StepShape(many=True))
    def get_steps(self, schedule: Schedule) -> list[dict[str, Any]]:
        return [step.written() for step in schedule.steps.all()]

    @extend_schema_field(OverviewSerializer)
    def get_overview(self, schedule: Schedule) -> Mapping[str, Any]:
        return OverviewSerializer(schedule.describe(now=self.context["view"].now)).data
