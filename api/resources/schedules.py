"""Schedules and the actions on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Q, QuerySet
from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, FlagFilter, MomentFilter, TextFilter, WholeFilter, WordsFilter
from api.reading import Nothing, Strict
from api.schema import (
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_MATCH_OPTIONAL,
    IF_NONE_MATCH,
    accepted,
    created,
    deleted,
    performed,
    retrieved,
    updated,
)
from database import clock
from execution.loops.manual_runs import trigger
from schedules import permissions
from schedules.models import Occurrence, Overlap, Schedule, ScheduleQuerySet
from schedules.models.occurrence import named_time
from schedules.models.schedule import LONGEST_NOTE

from .as_code import AsCodeActions
from .base import ListedResource
from .bulk_pause import BulkPauseActions, ResumeOptions
from .definitions import NewSchedule, ScheduleDefinition, ScheduleSerializer, ScheduleSummary
from .previews import PreviewActions

# Fields of the response that are not part of the definition. PUT ignores them.
READ_ONLY = ("id", "token", "state", "overview")
WHICH = {**dict(Schedule.Status.choices), "open": "active and paused", "all": "active, paused and closed"}


class ScheduleFilters(Filters):
    search = TextFilter(
        method="name_or_description",
        help_text="Return only schedules whose name or description contains this text.",
    )
    name = TextFilter(
        lookup_expr="iexact",
        help_text="Return only schedules with exactly this name. Upper and lower case make no difference.",
    )
    status = filters.ChoiceFilter(
        choices=list(WHICH.items()),
        method="with_status",
        help_text="Return only schedules with this status. `open`, the default, means active and paused "
        "schedules. `all` also includes closed schedules.",
    )
    tag = WordsFilter(
        method="tagged",
        help_text="Return only schedules with this tag. Repeat the parameter to require several tags.",
    )
    overlap = filters.ChoiceFilter(choices=Overlap.choices)
    last_outcome = filters.ChoiceFilter(
        choices=[(name, name) for name in ("completed", "failed", "cancelled")]
    )
    is_overdue = FlagFilter(
        method="overdue",
        help_text="If true, return only overdue schedules: a scheduled time has passed, but no scheduler has "
        "processed it. If false, return only other schedules.",
    )
    is_paused_by_failures = FlagFilter(
        method="paused_by_failures",
        help_text="If true, return only schedules that were paused automatically after failures. If false, "
        "return only other schedules.",
    )
    is_broken = FlagFilter(
        field_name="spec_error",
        lookup_expr="gt",
        method="broken",
        help_text="If true, return only schedules with an invalid spec. If false, return only schedules with "
        "a valid spec.",
    )
    next_run_after = MomentFilter(field_name="next_run_at", lookup_expr="gte")
    next_run_before = MomentFilter(field_name="next_run_at", lookup_expr="lt")
    calendar = WholeFilter(
        field_name="shared_calendars", help_text="Return only schedules that use the calendar with this id."
    )

    def filter_queryset(self, queryset: QuerySet[Schedule]) -> QuerySet[Schedule]:
        rows = super().filter_queryset(queryset)
        return rows if self.form.cleaned_data.get("status") else rows.exclude(status=Schedule.Status.CLOSED)

    def name_or_description(self, rows: ScheduleQuerySet, name: str, value: str) -> QuerySet[Schedule]:
        return rows.filter(Q(name__icontains=value) | Q(description__icontains=value))

    def with_status(self, rows: ScheduleQuerySet, name: str, value: str) -> QuerySet[Schedule]:
        if value == "all":
            return rows
        return rows.open() if value == "open" else rows.filter(status=value)

    def tagged(self, rows: ScheduleQuerySet, name: str, value: list[str]) -> QuerySet[Schedule]:
        return rows.tagged(*value)

    def overdue(self, rows: ScheduleQuerySet, name: str, value: bool) -> QuerySet[Schedule]:
        overdue = Schedule.objects.overdue(clock.now())
        return rows.filter(pk__in=overdue) if value else rows.exclude(pk__in=overdue)

    def paused_by_failures(self, rows: ScheduleQuerySet, name: str, value: bool) -> QuerySet[Schedule]:
        paused = Schedule.objects.paused_by_failures()
        return rows.filter(pk__in=paused) if value else rows.exclude(pk__in=paused)

    def broken(self, rows: ScheduleQuerySet, name: str, value: bool) -> QuerySet[Schedule]:
        return rows.exclude(spec_error="") if value else rows.filter(spec_error="")


class RunOptions(Strict[Any]):
    overlap = serializers.ChoiceField(
        choices=Overlap.choices,
        required=False,
        help_text="The overlap policy for this run. The default is the overlap policy of the schedule.",
    )
    at = serializers.DateTimeField(
        required=False,
        help_text="The nominal time of the run: the scheduled time that the run stands for. The default is "
        "now.",
    )


class PauseOptions(Strict[Any]):
    note = serializers.CharField(
        max_length=LONGEST_NOTE,
        allow_blank=True,
        required=False,
        help_text="The reason for the pause.",
    )
    until = serializers.DateTimeField(
        required=False,
        allow_null=True,
        help_text="When to resume the schedule automatically. If null, the schedule stays paused until you "
        "resume it.",
    )


class UnskipOptions(Strict[Any]):
    at = serializers.DateTimeField(help_text="The scheduled time that should no longer be skipped.")


class SkippedTimeSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField(
        help_text="The scheduled time that is now marked to be skipped or, after `unskip`, no longer marked "
        "to be skipped."
    )
    token = serializers.IntegerField(help_text="The new version of the schedule.")


class AcceptedRunSerializer(serializers.Serializer[Any]):
    """The response to a request to run a schedule."""

    occurrence = serializers.IntegerField(help_text="The id of the occurrence that records the request.")
    status = serializers.ChoiceField(choices=Occurrence.Status.choices)
    execution = serializers.IntegerField(
        allow_null=True, help_text="The id of the execution. Null if the execution has not started yet."
    )
    url = serializers.URLField(
        help_text="The URL at which you can follow the run. The Location header contains the same URL."
    )


class Schedules(PreviewActions, AsCodeActions, BulkPauseActions, ListedResource):
    """List schedules."""

    queryset = Schedule.objects.all()
    serializer_class, row_class = ScheduleSerializer, ScheduleSummary
    filterset_class = ScheduleFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("name", "-name", "id", "-id")
    parameters = {**PreviewActions.parameters, **AsCodeActions.parameters}
    needs: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("list", "retrieve", "preview", "preview_spec", "why"), "schedules.view_schedule"),
        **AsCodeActions.needs,
        "create": "schedules.add_schedule",
        "update": "schedules.change_schedule",
        "partial_update": "schedules.change_schedule",
        "destroy": permissions.CLOSE,
        **dict.fromkeys(("run", "pause", "resume", "skip_next", "unskip"), permissions.RUN),
        **dict.fromkeys(("pause_all", "resume_all"), permissions.RUN),
    }

    def get_queryset(self) -> Any:
        rows = super().get_queryset()
        return rows.defer("last_result") if self.action == "list" else rows

    def version_of(self, row: Schedule) -> object:
        return row.token

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(ScheduleSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a schedule with its definition, state and current activity."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=NewSchedule, parameters=[IDEMPOTENCY_KEY], responses=created(ScheduleSerializer))
    def create(self, request: Request) -> Response:
        """Create a schedule."""
        read = self.read(NewSchedule)
        return self.once(lambda: self._define(read))

    def _define(self, read: dict[str, Any]) -> Response:
        schedule = Schedule.objects.define(**read, may=self.may, initiator=self.by, now=self.now)
        url = reverse("api:schedule-detail", args=[schedule.pk])
        return self.respond_with(schedule, version=schedule.token, code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=ScheduleDefinition, parameters=[IF_MATCH], responses=updated(ScheduleSerializer))
    def update(self, request: Request, pk: str) -> Response:
        """Replace the definition of a schedule.

        Fields that are left out are set to their defaults. The request may include the read-only fields of
        the GET response (`id`, `token`, `state`, `overview`), which are ignored.
        """
        read = self.read(ScheduleDefinition, self.editable_body(read_only=READ_ONLY))
        usual = Schedule()
        return self._edit({name: read.get(name, getattr(usual, name)) for name in Schedule.EDITABLE}, read)

    @extend_schema(request=ScheduleDefinition, parameters=[IF_MATCH], responses=updated(ScheduleSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change fields of a schedule.

        If `steps` is included, it replaces all steps.
        """
        read = self.read(ScheduleDefinition, partial=True)
        return self._edit({name: read[name] for name in Schedule.EDITABLE if name in read}, read)

    @extend_schema(parameters=[IF_MATCH], responses=deleted())
    def destroy(self, request: Request, pk: str) -> Response:
        """Close a schedule permanently.

        Pending occurrences are cancelled and running executions continue. The history is kept, and the name
        can be used again.
        """
        schedule = self.get_object()
        self.check_version(schedule.token)
        schedule.close(initiator=self.by, now=self.now, token=schedule.token)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        request=RunOptions,
        parameters=[IDEMPOTENCY_KEY, IF_MATCH_OPTIONAL],
        responses=accepted(AcceptedRunSerializer),
    )
    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: str) -> Response:
        """Run a schedule now.

        If the overlap policy is `skip` and an execution is running, the request is refused (409), and
        `blocked_by` contains the id of the running execution.
        """
        read = self.read(RunOptions)
        return self.once(lambda: self._run(read))

    def _run(self, read: dict[str, Any]) -> Response:
        schedule, _ = self._schedule_and_token()
        occurrence = trigger(schedule, initiator=self.by, now=self.now, **read)
        execution = getattr(occurrence, "execution", None)
        body = {
            "occurrence": occurrence.pk,
            "status": occurrence.status,
            "execution": execution.pk if execution else None,
        }
        route = ("api:execution-detail", [execution.pk]) if execution else _occurrence_route(occurrence)
        return self.accepted(body, url=reverse(route[0], args=route[1]))

    @extend_schema(
        request=PauseOptions, parameters=[IF_MATCH_OPTIONAL], responses=performed(ScheduleSerializer)
    )
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: str) -> Response:
        """Pause a schedule.

        Running executions continue, but no automatic runs start. Scheduled times that pass meanwhile are
        recorded and can still run when the schedule is resumed.
        """
        return self._perform("pause", **self.read(PauseOptions))

    @extend_schema(
        request=ResumeOptions, parameters=[IF_MATCH_OPTIONAL], responses=performed(ScheduleSerializer)
    )
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: str) -> Response:
        """Resume a paused schedule."""
        return self._perform("resume", discard=self.read(ResumeOptions).get("missed") == "discard")

    @extend_schema(
        request=Nothing, parameters=[IF_MATCH_OPTIONAL], responses=performed(SkippedTimeSerializer)
    )
    @action(detail=True, methods=["post"], url_path="skip-next", url_name="skip-next")
    def skip_next(self, request: Request, pk: str) -> Response:
        """Skip the next scheduled time of a schedule.

        Each further request skips one more scheduled time.
        """
        self.read(Nothing)
        schedule, token = self._schedule_and_token()
        at = schedule.skip_next(initiator=self.by, now=self.now, token=token)
        return Response({"at": named_time(at), "token": schedule.token})

    @extend_schema(
        request=UnskipOptions, parameters=[IF_MATCH_OPTIONAL], responses=performed(SkippedTimeSerializer)
    )
    @action(detail=True, methods=["post"])
    def unskip(self, request: Request, pk: str) -> Response:
        """Undo `skip-next` for a scheduled time, so that the schedule runs at this time."""
        at = self.read(UnskipOptions)["at"]
        schedule, token = self._schedule_and_token()
        schedule.unskip(at, initiator=self.by, now=self.now, token=token)
        return Response({"at": named_time(at), "token": schedule.token})

    def _edit(self, fields: Mapping[str, Any], read: Mapping[str, Any]) -> Response:
        schedule = self.get_object()
        self.check_version(schedule.token)
        schedule.edit(
            token=schedule.token,
            changes=fields,
            steps=read.get("steps"),
            may=self.may,
            initiator=self.by,
            now=self.now,
        )
        return self.respond_with(schedule, version=schedule.token)

    def _perform(self, verb: str, **options: Any) -> Response:
        schedule, token = self._schedule_and_token()
        getattr(schedule, verb)(initiator=self.by, now=self.now, token=token, **options)
        return self.respond_with(schedule, version=schedule.token)

    def _schedule_and_token(self) -> tuple[Schedule, int | None]:
        """Return the schedule and its token. If the request has no If-Match header, the token is None."""
        schedule: Schedule = self.get_object()
        return schedule, schedule.token if self.check_version_if_given(schedule.token) else None


def _occurrence_route(occurrence: Occurrence) -> tuple[str, list[int]]:
    return "api:schedule-occurrence-detail", [occurrence.schedule_id, occurrence.pk]
