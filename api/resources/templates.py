from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from drf_spectacular.utils import extend_schema_serializer as shaped
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
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
)
from execution.models import WorkerTask
from schedules import permissions
from schedules.models import TaskTemplate

from .base import Listed
from .definitions import ObjectField, WordsField
from .examples import STEP
from .tasks import QueuedSerializer, accept_task

MOST_USERS = 100
EXAMPLE = OpenApiExample(
    "A call",
    {"name": "Health check", "step_type": STEP["step_type"], "config": STEP["config"], "max_retries": 5},
    request_only=True,
)


class UserOfTemplate(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()


class TemplateChange(Strict[Any], serializers.ModelSerializer[TaskTemplate]):
    config = ObjectField(required=False, help_text="The settings of its type.")
    retry_on = WordsField(required=False, max_length=10)
    resources = WordsField(required=False, max_length=10)

    class Meta:
        model = TaskTemplate
        fields = TaskTemplate.EDITABLE


@shaped(examples=[EXAMPLE])
class TemplateDefinition(TemplateChange):
    class Meta(TemplateChange.Meta):
        fields = ("name", *TaskTemplate.EDITABLE)


class TemplateListed(serializers.ModelSerializer[TaskTemplate]):
    config = ObjectField()
    retry_on = WordsField()
    resources = WordsField()

    class Meta:
        model = TaskTemplate
        fields = ("id", "token", "status", "name", *TaskTemplate.EDITABLE)
        read_only_fields = fields


class TemplateSerializer(TemplateListed):
    used_by = serializers.SerializerMethodField(help_text="The first open schedules with steps of it.")

    class Meta(TemplateListed.Meta):
        fields = (*TemplateListed.Meta.fields, "used_by")
        read_only_fields = fields

    @extend_schema_field(UserOfTemplate(many=True))
    def get_used_by(self, template: TaskTemplate) -> Any:
        return UserOfTemplate(template.used_by()[:MOST_USERS], many=True).data


class TemplateFilters(Filters):
    search = TextFilter(field_name="name", lookup_expr="icontains", help_text="Part of the name.")
    status = filters.ChoiceFilter(choices=TaskTemplate.Status.choices)
    step_type = TextFilter()


class Templates(Listed):
    """What steps that are alike have in common, in one place."""

    queryset = TaskTemplate.objects.all()
    serializer_class = TemplateSerializer
    filterset_class = TemplateFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("name", "-name", "id", "-id")
    needs: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("list", "retrieve"), "schedules.view_tasktemplate"),
        "create": "schedules.add_tasktemplate",
        **dict.fromkeys(("update", "partial_update", "archive", "restore"), "schedules.change_tasktemplate"),
        "run": permissions.RUN,
    }

    def get_serializer_class(self) -> Any:
        return TemplateListed if self.action == "list" else TemplateSerializer

    def version_of(self, row: TaskTemplate) -> object:
        return row.token

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(TemplateSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """A template, and which schedules have steps of it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=TemplateDefinition, parameters=[IDEMPOTENCY_KEY], responses=makes(TemplateSerializer)
    )
    def create(self, request: Request) -> Response:
        """Define a template."""
        read = self.read(TemplateDefinition)
        return self.once(lambda: self._define(read))

    def _define(self, read: dict[str, Any]) -> Response:
        template = TaskTemplate.objects.define(**read, **self._who)
        url = reverse("api:template-detail", args=[template.pk])
        return self.shown(template, version=template.token, code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=TemplateDefinition, parameters=[IF_MATCH], responses=changes(TemplateSerializer))
    def update(self, request: Request, pk: str) -> Response:
        """Replace it; its name stays. What is left out gets its default; steps of it change with it."""
        written = self.written(shown_only=("id", "token", "status", "used_by"))
        return self._edit(TaskTemplate().definition() | self.read(TemplateDefinition, written))

    @extend_schema(request=TemplateChange, parameters=[IF_MATCH], responses=changes(TemplateSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change some of its fields; the steps of open schedules that refer to it change with it."""
        return self._edit(self.read(TemplateChange, partial=True))

    @extend_schema(request=Nothing, parameters=[IF_MATCH_IF_SAID], responses=acts(TemplateSerializer))
    @action(detail=True, methods=["post"])
    def archive(self, request: Request, pk: str) -> Response:
        """Let no step newly refer to it; those that do go on."""
        return self._moved("archive")

    @extend_schema(request=Nothing, parameters=[IF_MATCH_IF_SAID], responses=acts(TemplateSerializer))
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, pk: str) -> Response:
        """Let steps refer to it again."""
        return self._moved("restore")

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepts(QueuedSerializer))
    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: str) -> Response:
        """Queue a single job of it, as it is now."""
        self.read(Nothing)
        return self.once(self._run)

    def _run(self) -> Response:
        template: TaskTemplate = self.get_object()
        template.resolve({})
        [key] = WorkerTask.objects.enqueue([{"template": template.name}], initiator=self.by, now=self.now)
        return accept_task(self, key)

    @property
    def _who(self) -> dict[str, Any]:
        return {"initiator": self.by, "now": self.now, "may": self.may}

    def _edit(self, read: dict[str, Any]) -> Response:
        template: TaskTemplate = self.get_object()
        self.match(template.token)
        if read.pop("name", template.name) != template.name:
            raise ValidationError({"name": f"Its name stays “{template.name}”, as steps refer to it."})
        template.edit(token=template.token, changes=read, **self._who)
        return self.shown(template, version=template.token)

    def _moved(self, verb: str) -> Response:
        self.read(Nothing)
        template: TaskTemplate = self.get_object()
        token = template.token if self.match_if_said(template.token) else None
        getattr(template, verb)(initiator=self.by, now=self.now, token=token)
        return self.shown(template, version=template.token)
