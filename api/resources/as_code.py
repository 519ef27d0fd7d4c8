"""Export and import of schedules as YAML or JSON files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied, ValidationError
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from api import errors
from api.filtering import flag_of
from api.permissions import can, check
from api.reading import FileJSONParser, Strict, YAMLParser
from api.schema import IDEMPOTENCY_KEY, problems
from files.yaml_lines import node_of
from schedules.as_code import as_yaml, document, needed_to_read, selected
from schedules.code_files import Library, Problem
from schedules.models import Refused
from schedules.reconcile import Author, reconcile

from .base import Resource

MOST_NAMED = 5
NAMES = OpenApiParameter(
    "name", OpenApiTypes.STR, many=True, description="Export only schedules with these names."
)
TAGS = OpenApiParameter(
    "tag", OpenApiTypes.STR, many=True, description="Export only schedules with all these tags."
)
DRY_RUN = OpenApiParameter(
    "dry_run",
    OpenApiTypes.BOOL,
    description="Return the changes that the import would make, but do not make them.",
)
PAUSED = OpenApiParameter(
    "paused", OpenApiTypes.BOOL, description="Pause the schedules that the import creates."
)
YAML = YAMLParser.media_type


class YAMLRenderer(BaseRenderer):
    media_type, format, charset = YAML, "yaml", "utf-8"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> Any:
        """Render YAML. Errors are rendered as JSON, regardless of the requested format."""
        if renderer_context["response"].exception:
            return JSONRenderer().render(data)
        return as_yaml(data)


class ScheduleFile(Strict[Any]):
    """A file in the format that the command `exportschedules` writes."""

    version = serializers.IntegerField(min_value=1, max_value=1)
    calendars = serializers.ListField(child=serializers.DictField(), required=False)
    templates = serializers.ListField(child=serializers.DictField(), required=False)
    schedules = serializers.ListField(child=serializers.DictField(), required=False)


class ImportChangeSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=["calendar", "template", "schedule"])
    name = serializers.CharField()
    is_new = serializers.BooleanField()
    lines = serializers.ListField(
        child=serializers.CharField(),
        help_text="The differences between the stored entry and the file, line by line. Empty for a new "
        "entry.",
    )


class ImportResultSerializer(serializers.Serializer[Any]):
    dry_run = serializers.BooleanField()
    changes = ImportChangeSerializer(many=True)
    unchanged = serializers.IntegerField(
        help_text="Number of entries in the file that are already up to date."
    )
    others = serializers.IntegerField(
        help_text="Number of active and paused schedules that are not in the file."
    )


class AsCodeActions(Resource):
    parameters = {"export": ("name", "tag"), "import_": ("dry_run", "paused")}
    repeatable = {"export": ("name", "tag")}
    needs: ClassVar[Mapping[str, str]] = {
        "export": "schedules.view_schedule",
        "import_": "schedules.change_schedule",
    }

    @extend_schema(
        parameters=[NAMES, TAGS],
        responses={(200, "application/json"): ScheduleFile, (200, YAML): OpenApiTypes.STR},
        filters=False,
    )
    @action(detail=False, pagination_class=None, renderer_classes=[JSONRenderer, YAMLRenderer])
    def export(self, request: Request) -> Response:
        """Export schedules with their calendars and templates as one file.

        The file is JSON, or YAML with `Accept: application/yaml`. Without names and tags, the file contains
        all schedules except closed ones, all calendars, and all templates except archived ones that are no
        longer used. Secrets are exported as references, never as values.
        """
        names, tags = (request.query_params.getlist(name) for name in ("name", "tag"))
        try:
            found = document(selected(names, tags=tags))
        except Refused as refused:
            raise ValidationError({"name" if names else "tag": str(refused)}) from refused
        for permission in needed_to_read(found):
            check(request, permission)
        return Response(found)

    @extend_schema(
        operation_id="schedules_import",
        # YAML is only mentioned in the text: client generators reject request bodies that are not JSON.
        request={"application/json": ScheduleFile},
        parameters=[DRY_RUN, PAUSED, IDEMPOTENCY_KEY],
        responses={200: ImportResultSerializer, **problems(409, 415)},
    )
    @action(
        detail=False,
        methods=["post"],
        url_path="import",
        url_name="import",
        parser_classes=[FileJSONParser, YAMLParser],
    )
    def import_(self, request: Request) -> Response:
        """Import schedules, calendars and templates from a file.

        The body is the file: JSON, or YAML with `Content-Type: application/yaml`. Each entry updates the
        schedule, calendar or template with the same name, or creates a new one. Everything that is not in the
        file stays unchanged. If any entry is invalid, nothing is changed. You need permission to create or
        change each entry.
        """
        dry_run, paused = flag_of(request, "dry_run"), flag_of(request, "paused")
        run = partial(self._import, dry_run=dry_run, paused=paused)
        return run() if dry_run else self.once(run)

    def _import(self, *, dry_run: bool, paused: bool) -> Response:
        outcome = reconcile(
            _library(self.request.data),
            author=Author(self.by, partial(can, self.request)),
            now=self.now,
            dry_run=dry_run,
            paused=paused,
        )
        _refuse(outcome.problems)
        return Response({"dry_run": dry_run, **outcome.as_json()})


def _library(data: Any) -> Library:
    library = Library()
    if isinstance(data, str):
        library.add_text("", data)
    else:
        library.add_document("", node_of(data))
    return library


def _refuse(found: Sequence[Problem]) -> None:
    """Raise an error for the first kind of problem found: missing permissions, invalid values, conflicts."""
    by_code: dict[str, list[Problem]] = defaultdict(list)
    for problem in found:
        by_code[problem.code].append(problem)
    if forbidden := [problem.words for problem in by_code["forbidden"]]:
        more = f" And {len(forbidden) - MOST_NAMED:,} more." if len(forbidden) > MOST_NAMED else ""
        raise PermissionDenied("; ".join(forbidden[:MOST_NAMED]) + f".{more}")
    if by_code["invalid"]:
        by_path: dict[str, list[str]] = defaultdict(list)
        for problem in by_code["invalid"]:
            by_path[problem.path].append(_with_line(problem))
        raise ValidationError(by_path)
    if by_code["changed"]:
        raise errors.Problem(by_code["changed"][0].words, status_code=409, code="changed")


def _with_line(problem: Problem) -> str:
    return f"line {problem.line}: {problem.words}" if problem.line else problem.words
