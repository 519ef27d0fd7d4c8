"""Shared calendars: dates and times at which schedules do not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, extend_schema, extend_schema_field
from drf_spectacular.utils import extend_schema_serializer as shaped
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.paging import limit_of
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, created, deleted, retrieved, updated
from schedules.models import SharedCalendar

from .base import ListedResource
from .definitions import UsedByField

EXAMPLE = OpenApiExample(
    "Holidays",
    {"name": "UK holidays", "excluded": [{"holidays": "GB"}, {"dates": "2026-12-24/2027-01-02"}]},
    request_only=True,
)
YEAR = OpenApiParameter(
    "year",
    {"type": "integer", "minimum": 1970, "maximum": 2199},
    description="The year for which to list the dates. The default is the current year.",
)


@extend_schema_field({"type": "array", "items": {"type": "object", "additionalProperties": True}})
class ExclusionsField(serializers.JSONField):
    """A list of excluded times in the same format as `exclude` in a spec."""


class CalendarSummary(serializers.ModelSerializer[SharedCalendar]):
    excluded = ExclusionsField()
    sentence = serializers.CharField(
        source="describe", read_only=True, help_text="A description of the excluded times in words."
    )

    class Meta:
        model = SharedCalendar
        fields = ("id", "token", "name", "description", "excluded", "sentence")
        read_only_fields = fields


class CalendarSerializer(CalendarSummary):
    used_by = UsedByField("that use the calendar")

    class Meta(CalendarSummary.Meta):
        fields = (*CalendarSummary.Meta.fields, "used_by")  # type: ignore[assignment]
        read_only_fields = fields  # type: ignore[assignment]


class CalendarUpdate(Strict[Any]):
    description = serializers.CharField(max_length=1_000, allow_blank=True, required=False)
    excluded = ExclusionsField(
        help_text="The excluded times, in the same format as `exclude` in a spec. References to other "
        "calendars are not allowed."
    )


@shaped(examples=[EXAMPLE])
class CalendarDefinition(CalendarUpdate):
    name = serializers.CharField(
        max_length=100,
        help_text="The name of the calendar. The name cannot be changed later, because specs refer to the "
        "calendar by name.",
    )


class CalendarDateSerializer(serializers.Serializer[Any]):
    date = serializers.DateField()
    comment = serializers.CharField(allow_blank=True)


class CalendarFilters(Filters):
    search = TextFilter(
        field_name="name",
        lookup_expr="icontains",
        help_text="Return only calendars with a name that contains this text.",
    )


class Calendars(ListedResource):
    """List the shared calendars: times at which schedules do not run, such as public holidays."""

    queryset = SharedCalendar.objects.all()
    serializer_class, row_class = CalendarSerializer, CalendarSummary
    filterset_class = CalendarFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("name", "-name", "id", "-id")
    parameters = {"dates": ("year",)}
    needs: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("list", "retrieve", "dates"), "schedules.view_sharedcalendar"),
        "create": "schedules.add_sharedcalendar",
        "update": "schedules.change_sharedcalendar",
        "partial_update": "schedules.change_sharedcalendar",
        "destroy": "schedules.delete_sharedcalendar",
    }

    def version_of(self, row: SharedCalendar) -> object:
        return row.token

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(CalendarSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a calendar and the schedules that use it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=CalendarDefinition, parameters=[IDEMPOTENCY_KEY], responses=created(CalendarSerializer)
    )
    def create(self, request: Request) -> Response:
        """Create a calendar."""
        read = self.read(CalendarDefinition)
        return self.once(lambda: self._define(read))

    def _define(self, read: dict[str, Any]) -> Response:
        calendar = SharedCalendar.objects.define(**read, initiator=self.by, now=self.now)
        url = reverse("api:calendar-detail", args=[calendar.pk])
        return self.respond_with(calendar, version=calendar.token, code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=CalendarDefinition, parameters=[IF_MATCH], responses=updated(CalendarSerializer))
    def update(self, request: Request, pk: str) -> Response:
        """Replace a calendar.

        The name cannot be changed. The change affects all schedules that use the calendar.
        """
        written = self.editable_body(read_only=("id", "token", "sentence", "used_by"))
        return self._edit({"description": "", **self.read(CalendarDefinition, written)})

    @extend_schema(request=CalendarUpdate, parameters=[IF_MATCH], responses=updated(CalendarSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change fields of a calendar.

        The change affects all schedules that use the calendar.
        """
        return self._edit(self.read(CalendarUpdate, partial=True))

    @extend_schema(parameters=[IF_MATCH], responses=deleted())
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a calendar.

        The request is refused (409) while an active or paused schedule uses the calendar.
        """
        calendar = self.get_object()
        self.check_version(calendar.token)
        calendar.remove(initiator=self.by, now=self.now, token=calendar.token)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(parameters=[YEAR], responses=CalendarDateSerializer(many=True), filters=False)
    @action(detail=True, pagination_class=None)
    def dates(self, request: Request, pk: str) -> Response:
        """List the excluded dates of a year, each with its holiday name or comment."""
        year = limit_of(request, self.now.year, name="year", least=1970, most=2199)
        found = self.get_object().upcoming_dates(year)
        return Response([{"date": day.isoformat(), "comment": comment} for day, comment in found])

    def _edit(self, read: dict[str, Any]) -> Response:
        calendar: SharedCalendar = self.get_object()
        self.check_version(calendar.token)
        if read.pop("name", calendar.name) != calendar.name:
            raise ValidationError(
                {
                    "name": f"The name “{calendar.name}” cannot be changed, because specs refer to the "
                    "calendar by name."
                }
            )
        calendar.edit(token=calendar.token, changes=read, initiator=self.by, now=self.now)
        return self.respond_with(calendar, version=calendar.token)
