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
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, changes, makes, reads, removes
from schedules.models import SharedCalendar

from .base import Listed

MOST_USERS = 100
EXAMPLE = OpenApiExample(
    "Holidays",
    {"name": "UK holidays", "excluded": [{"holidays": "GB"}, {"dates": "2026-12-24/2027-01-02"}]},
    request_only=True,
)
YEAR = OpenApiParameter(
    "year", {"type": "integer", "minimum": 1970, "maximum": 2199}, description="This year, if none is said."
)


@extend_schema_field({"type": "array", "items": {"type": "object", "additionalProperties": True}})
class ExclusionsField(serializers.JSONField):
    """A list, as in a spec's `exclude`."""


class UserOfCalendar(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()


class CalendarListed(serializers.ModelSerializer[SharedCalendar]):
    excluded = ExclusionsField()
    sentence = serializers.CharField(source="describe", read_only=True, help_text="What it leaves out.")

    class Meta:
        model = SharedCalendar
        fields = ("id", "token", "name", "description", "excluded", "sentence")
        read_only_fields = fields


class CalendarSerializer(CalendarListed):
    used_by = serializers.SerializerMethodField(help_text="The first open schedules that name it.")

    class Meta(CalendarListed.Meta):
        fields = (*CalendarListed.Meta.fields, "used_by")  # type: ignore[assignment]
        read_only_fields = fields  # type: ignore[assignment]

    @extend_schema_field(UserOfCalendar(many=True))
    def get_used_by(self, calendar: SharedCalendar) -> Any:
        return UserOfCalendar(calendar.used_by()[:MOST_USERS], many=True).data


class CalendarChange(Strict[Any]):
    description = serializers.CharField(max_length=1_000, allow_blank=True, required=False)
    excluded = ExclusionsField(help_text="A list, as in a spec's `exclude`, without other calendars.")


@shaped(examples=[EXAMPLE])
class CalendarDefinition(CalendarChange):
    name = serializers.CharField(max_length=100, help_text="Specs refer to it by this name, which stays.")


class DateSerializer(serializers.Serializer[Any]):
    date = serializers.DateField()
    comment = serializers.CharField(allow_blank=True)


class CalendarFilters(Filters):
    search = TextFilter(field_name="name", lookup_expr="icontains", help_text="Part of the name.")


class Calendars(Listed):
    """Times at which nothing that refers to them runs: maintenance windows, public holidays."""

    queryset = SharedCalendar.objects.all()
    serializer_class = CalendarSerializer
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

    def get_serializer_class(self) -> Any:
        return CalendarListed if self.action == "list" else CalendarSerializer

    def version_of(self, row: SharedCalendar) -> object:
        return row.token

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(CalendarSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """What a calendar leaves out, and which schedules name it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=CalendarDefinition, parameters=[IDEMPOTENCY_KEY], responses=makes(CalendarSerializer)
    )
    def create(self, request: Request) -> Response:
        """Define a calendar."""
        read = self.read(CalendarDefinition)
        return self.once(lambda: self._define(read))

    def _define(self, read: dict[str, Any]) -> Response:
        calendar = SharedCalendar.objects.define(**read, initiator=self.by, now=self.now)
        url = reverse("api:calendar-detail", args=[calendar.pk])
        return self.shown(calendar, version=calendar.token, code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=CalendarDefinition, parameters=[IF_MATCH], responses=changes(CalendarSerializer))
    def update(self, request: Request, pk: str) -> Response:
        """Replace it; its name stays. The times of the schedules that name it change with it."""
        written = self.written(shown_only=("id", "token", "sentence", "used_by"))
        return self._edit({"description": "", **self.read(CalendarDefinition, written)})

    @extend_schema(request=CalendarChange, parameters=[IF_MATCH], responses=changes(CalendarSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change some of it; the times of the schedules that name it change with it."""
        return self._edit(self.read(CalendarChange, partial=True))

    @extend_schema(parameters=[IF_MATCH], responses=removes())
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete it; refused (409) while an open schedule names it."""
        calendar = self.get_object()
        self.match(calendar.token)
        calendar.remove(initiator=self.by, now=self.now, token=calendar.token)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(parameters=[YEAR], responses=DateSerializer(many=True), filters=False)
    @action(detail=True, pagination_class=None)
    def dates(self, request: Request, pk: str) -> Response:
        """The dates of a year that it names one by one, with the holiday or comment of each."""
        year = limit_of(request, self.now.year, name="year", least=1970, most=2199)
        found = self.get_object().upcoming_dates(year)
        return Response([{"date": day.isoformat(), "comment": comment} for day, comment in found])

    def _edit(self, read: dict[str, Any]) -> Response:
        calendar: SharedCalendar = self.get_object()
        self.match(calendar.token)
        if read.pop("name", calendar.name) != calendar.name:
            raise ValidationError({"name": f"Its name stays “{calendar.name}”, as specs refer to it."})
        calendar.edit(token=calendar.token, changes=read, initiator=self.by, now=self.now)
        return self.shown(calendar, version=calendar.token)
