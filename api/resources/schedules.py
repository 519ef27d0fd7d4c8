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
    IF_MATCH_IF_SAID,
    IF_NONE_MATCH,
    accepts,
    acts,
    changes,
    makes,
    reads,
    removes,
)
from database import clock
from execution.loops.invoker import trigger
from schedules import permissions
from schedules.models import Occurrence, Overlap, Schedule, ScheduleQuerySet
from schedules.models.occurrence import named_time
from schedules.models.schedule import LONGEST_NOTE

from .as_code import AsCode
from .base import Listed
from .definitions import NewSchedule, ScheduleDefinition, ScheduleListed, ScheduleSerializer
from .previews import Inquiries
from .together import ResumeWriting, Together

# What a schedule is shown with, besides its definition; whoever sends it back does not change it so.
SHOWN_ONLY = ("id", "token", "state", "overview")
WHICH = {**dict(Schedule.Status.choices), "open": "running and paused", "all": "also closed ones"}


class ScheduleFilters(Filters):
    search = TextFilter(method="having", help_text="Part of the name or of the description.")
    name = TextFilter(lookup_expr="iexact", help_text="The whole name.")
    status = filters.ChoiceFilter(
        choices=list(WHICH.items()), method="standing", help_text="Without it: all but closed ones (`open`)."
    )
    tag = WordsFilter(method="tagged", help_text="Given several times: with all of them.")
    overlap = filters.ChoiceFilter(choices=Overlap.choices)
    last_outcome = filters.ChoiceFilter(
        choices=[(name, name) for name in ("completed", "failed", "cancelled")]
    )
    is_overdue = FlagFilter(method="late", help_text="Whether its time has passed unseen.")
    is_paused_by_failures = FlagFilter(method="paused_by_itself")
    is_broken = FlagFilter(field_name="spec_error", lookup_expr="gt", method="broken")
    next_run_after = MomentFilter(field_name="next_run_at", lookup_expr="gte")
    next_run_before = MomentFilter(field_name="next_run_at", lookup_expr="lt")
    calendar = WholeFilter(field_name="shared_calendars", help_text="The id of a calendar that it names.")

    def filter_queryset(self, queryset: QuerySet[Schedule]) -> QuerySet[Schedule]:
        rows = super().filter_queryset(queryset)
        return rows if self.form.cleaned_data.get("status") else rows.exclude(status=Schedule.Status.CLOSED)

    def having(self, rows: ScheduleQuerySet, name: str, value: str) -> QuerySet[Schedule]:
        return rows.filter(Q(name__icontains=value) | Q(description__icontains=value))

    def standing(self, rows: ScheduleQuerySet, name: str, value: str) -> QuerySet[Schedule]:
        if value == "all":
            return rows
        return rows.open() if value == "open" else rows.filter(status=value)

    def tagged(self, rows: ScheduleQuerySet, name: str, value: list[str]) -> QuerySet[Schedule]:
        return rows.tagged(*value)

    def late(self, rows: ScheduleQuerySet, name: str, value: bool) -> QuerySet[Schedule]:
        overdue = Schedule.objects.overdue(clock.now())
        return rows.filter(pk__in=overdue) if value else rows.exclude(pk__in=overdue)

    def paused_by_itself(self, rows: ScheduleQuerySet, name: str, value: bool) -> QuerySet[Schedule]:
        paused = Schedule.objects.paused_by_failures()
        return rows.filter(pk__in=paused) if value else rows.exclude(pk__in=paused)

    def broken(self, rows: ScheduleQuerySet, name: str, value: bool) -> QuerySet[Schedule]:
        return rows.exclude(spec_error="") if value else rows.filter(spec_error="")


class RunWriting(Strict[Any]):
    overlap = serializers.ChoiceField(
        choices=Overlap.choices, required=False, help_text="Instead of the schedule's own policy."
    )
    at = serializers.DateTimeField(
        required=False, help_text="The time that the run stands for, if that is not now."
    )


class PauseWriting(Strict[Any]):
    note = serializers.CharField(
        max_length=LONGEST_NOTE,
        allow_blank=True,
        required=False,
        help_text="Why, for whoever finds it paused.",
    )
    until = serializers.DateTimeField(required=False, allow_null=True, help_text="It then resumes by itself.")


class UnskipWriting(Strict[Any]):
    at = serializers.DateTimeField(help_text="A time that was to be left out.")


class SkippedSerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    token = serializers.IntegerField()


class RequestedRunSerializer(serializers.Serializer[Any]):
    """A run that was asked for; without an execution it waits for its turn."""

    occurrence = serializers.IntegerField()
    status = serializers.ChoiceField(choices=Occurrence.Status.choices)
    execution = serializers.IntegerField(allow_null=True)
    url = serializers.URLField()


class Schedules(Inquiries, AsCode, Together, Listed):
    """What runs, and when."""

    queryset = Schedule.objects.all()
    serializer_class = ScheduleSerializer
    filterset_class = ScheduleFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("name", "-name", "id", "-id")
    parameters = {**Inquiries.parameters, **AsCode.parameters}
    needs: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("list", "retrieve", "preview", "preview_spec", "why"), "schedules.view_schedule"),
        **AsCode.needs,
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

    def get_serializer_class(self) -> Any:
        return ScheduleListed if self.action == "list" else ScheduleSerializer

    def version_of(self, row: Schedule) -> object:
        return row.token

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(ScheduleSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One schedule: its definition, its state, and what goes on around it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=NewSchedule, parameters=[IDEMPOTENCY_KEY], responses=makes(ScheduleSerializer))
    def create(self, request: Request) -> Response:
        """Define a schedule, checked as a whole."""
        read = self.read(NewSchedule)
        return self.once(lambda: self._define(read))

    def _define(self, read: dict[str, Any]) -> Response:
        schedule = Schedule.objects.define(**read, may=self.may, initiator=self.by, now=self.now)
        url = reverse("api:schedule-detail", args=[schedule.pk])
        return self.shown(schedule, version=schedule.token, code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=ScheduleDefinition, parameters=[IF_MATCH], responses=changes(ScheduleSerializer))
    def update(self, request: Request, pk: str) -> Response:
        """Replace its definition.

        What is left out gets its default. What GET shows besides the definition (id, token, state, overview)
        may be sent along, and is ignored.
        """
        read = self.read(ScheduleDefinition, self.written(shown_only=SHOWN_ONLY))
        usual = Schedule()
        return self._edit({name: read.get(name, getattr(usual, name)) for name in Schedule.EDITABLE}, read)

    @extend_schema(request=ScheduleDefinition, parameters=[IF_MATCH], responses=changes(ScheduleSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change some of its fields; steps are replaced all together."""
        read = self.read(ScheduleDefinition, partial=True)
        return self._edit({name: read[name] for name in Schedule.EDITABLE if name in read}, read)

    @extend_schema(parameters=[IF_MATCH], responses=removes())
    def destroy(self, request: Request, pk: str) -> Response:
        """Close it for good.

        What is pending is cancelled, what is running goes on, its history stays and its name becomes free.
        """
        schedule = self.get_object()
        self.match(schedule.token)
        schedule.close(initiator=self.by, now=self.now, token=schedule.token)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        request=RunWriting,
        parameters=[IDEMPOTENCY_KEY, IF_MATCH_IF_SAID],
        responses=accepts(RequestedRunSerializer),
    )
    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: str) -> Response:
        """Run it now.

        Refused (409) with the execution in the way as `blocked_by`, if its overlap policy is to skip.
        """
        read = self.read(RunWriting)
        return self.once(lambda: self._run(read))

    def _run(self, read: dict[str, Any]) -> Response:
        schedule, _ = self._named()
        occurrence = trigger(schedule, initiator=self.by, now=self.now, **read)
        execution = getattr(occurrence, "execution", None)
        body = {
            "occurrence": occurrence.pk,
            "status": occurrence.status,
            "execution": execution.pk if execution else None,
        }
        route = ("api:execution-detail", [execution.pk]) if execution else _ledger(occurrence)
        return self.accepted(body, url=reverse(route[0], args=route[1]))

    @extend_schema(request=PauseWriting, parameters=[IF_MATCH_IF_SAID], responses=acts(ScheduleSerializer))
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: str) -> Response:
        """Let automatic runs wait; their times are still recorded, and what is running goes on."""
        return self._changed("pause", **self.read(PauseWriting))

    @extend_schema(request=ResumeWriting, parameters=[IF_MATCH_IF_SAID], responses=acts(ScheduleSerializer))
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: str) -> Response:
        """Let automatic runs start again."""
        return self._changed("resume", discard=self.read(ResumeWriting).get("missed") == "discard")

    @extend_schema(request=Nothing, parameters=[IF_MATCH_IF_SAID], responses=acts(SkippedSerializer))
    @action(detail=True, methods=["post"], url_path="skip-next", url_name="skip-next")
    def skip_next(self, request: Request, pk: str) -> Response:
        """Leave out its next automatic time; asked again, the one after it."""
        self.read(Nothing)
        schedule, token = self._named()
        at = schedule.skip_next(initiator=self.by, now=self.now, token=token)
        return Response({"at": named_time(at), "token": schedule.token})

    @extend_schema(request=UnskipWriting, parameters=[IF_MATCH_IF_SAID], responses=acts(SkippedSerializer))
    @action(detail=True, methods=["post"])
    def unskip(self, request: Request, pk: str) -> Response:
        """Let a time occur after all."""
        at = self.read(UnskipWriting)["at"]
        schedule, token = self._named()
        schedule.unskip(at, initiator=self.by, now=self.now, token=token)
        return Response({"at": named_time(at), "token": schedule.token})

    def _edit(self, fields: Mapping[str, Any], read: Mapping[str, Any]) -> Response:
        schedule = self.get_object()
        self.match(schedule.token)
        schedule.edit(
            token=schedule.token,
            changes=fields,
            steps=read.get("steps"),
            may=self.may,
            initiator=self.by,
            now=self.now,
        )
        return self.shown(schedule, version=schedule.token)

    def _changed(self, verb: str, **asked: Any) -> Response:
        schedule, token = self._named()
        getattr(schedule, verb)(initiator=self.by, now=self.now, token=token, **asked)
        return self.shown(schedule, version=schedule.token)

    def _named(self) -> tuple[Schedule, int | None]:
        """With its token, if the request says which version it is about."""
        schedule: Schedule = self.get_object()
        return schedule, schedule.token if self.match_if_said(schedule.token) else None


def _ledger(occurrence: Occurrence) -> tuple[str, list[int]]:
    return "api:schedule-occurrence-detail", [occurrence.schedule_id, occurrence.pk]
