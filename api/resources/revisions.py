"""Revisions of a schedule's definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from api.paging import FORGED, KeysetPages, limit_of
from schedules.as_code import difference
from schedules.revisions import Revision, Revisions, compare
from text.numbers import whole_number

from .attempts import AnyJson
from .occurrences import ScheduleResource

OF_SCHEDULE = OpenApiParameter("schedule_id", OpenApiTypes.INT, OpenApiParameter.PATH)
NUMBER = OpenApiParameter(
    "number",
    OpenApiTypes.INT,
    OpenApiParameter.PATH,
    description="The number of the revision. The first revision has the number 1.",
)
AGAINST = OpenApiParameter(
    "against",
    {"type": "integer", "minimum": 1},
    description="The number of the revision to compare with. The default is the previous revision.",
)


class DefinitionChangeSerializer(serializers.Serializer[Any]):
    """A changed value. `before` is null for an added value, and `after` is null for a removed value."""

    path = serializers.CharField(
        help_text="The path of the changed field, such as `overlap` or `steps[0].name`."
    )
    before = AnyJson()
    after = AnyJson()


class RevisionSummary(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    at = serializers.DateTimeField()
    by = serializers.CharField(source="by.name")
    operation = serializers.CharField()
    message = serializers.CharField(allow_blank=True)
    changes = DefinitionChangeSerializer(many=True)
    activity = serializers.IntegerField(source="activity_id")


class RevisionSerializer(RevisionSummary):
    definition = serializers.DictField(help_text="The definition of the schedule after this change.")


class RevisionDiffSerializer(serializers.Serializer[Any]):
    older = serializers.IntegerField()
    newer = serializers.IntegerField()
    changes = DefinitionChangeSerializer(many=True)
    text = serializers.CharField(
        allow_blank=True,
        help_text="The changes as a text diff. Removed lines begin with `-`, added lines with `+`, unchanged "
        "lines with a space.",
    )


class NumberedPages(KeysetPages):
    """Pages of revisions. The cursor is the number of the first revision on the page."""

    page_size = 25

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> Any:
        revisions: Revisions = queryset
        limit, newest = limit_of(request, self.page_size), len(revisions)
        first = self._first(request, newest)
        here = request.build_absolute_uri()
        following, preceding = first - limit, min(first + limit, newest)
        self._next = replace_query_param(here, "cursor", following) if following > 0 else None
        self._previous = replace_query_param(here, "cursor", preceding) if first < newest else None
        return revisions[newest - first : newest - first + limit]

    def get_next_link(self) -> str | None:
        return self._next

    def get_previous_link(self) -> str | None:
        return self._previous

    def _first(self, request: Request, newest: int) -> int:
        text = request.query_params.get("cursor", str(newest))
        first = whole_number(text, digits=9, most=newest)
        if first is None:
            raise ValidationError({"cursor": FORGED})
        return first


class RevisionsOfSchedule(ScheduleResource):
    """List the revisions of a schedule's definition, newest first."""

    serializer_class = RevisionSerializer
    pagination_class = NumberedPages
    filter_backends = ()
    lookup_field, lookup_value_regex = "number", "[0-9]{1,9}"
    orderings = ("-number",)
    parameters = {"diff": ("against",)}
    needs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("list", "retrieve", "diff"), "schedules.view_schedule"
    )

    @extend_schema(parameters=[OF_SCHEDULE], responses=RevisionSummary(many=True))
    def list(self, request: Request, schedule_id: str) -> Response:
        page = self.paginate_queryset(self._revisions)
        return self.get_paginated_response(RevisionSummary(page, many=True).data)

    @extend_schema(parameters=[OF_SCHEDULE, NUMBER], responses=RevisionSerializer)
    def retrieve(self, request: Request, schedule_id: str, number: str) -> Response:
        """Retrieve a revision: the definition after a change, and what was changed."""
        return Response(RevisionSerializer(self._revision(int(number))).data)

    @extend_schema(parameters=[OF_SCHEDULE, NUMBER, AGAINST], responses=RevisionDiffSerializer, filters=False)
    @action(detail=True, pagination_class=None)
    def diff(self, request: Request, schedule_id: str, number: str) -> Response:
        """Compare a revision with an earlier or later one."""
        before = limit_of(request, max(int(number) - 1, 1), name="against", most=10**8)
        older, newer = (self._revision(each) for each in sorted((before, int(number))))
        body = {
            "older": older.number,
            "newer": newer.number,
            "changes": compare(older.definition, newer.definition),
            "text": "\n".join(difference(older.definition, newer.definition)),
        }
        return Response(RevisionDiffSerializer(body).data)

    @property
    def _revisions(self) -> Revisions:
        return self.schedule.revisions()

    def _revision(self, number: int) -> Revision:
        revisions = self._revisions
        if not 1 <= number <= len(revisions):
            raise NotFound(f"Revision {number} was not found. The newest revision is {len(revisions)}.")
        return revisions[len(revisions) - number]
