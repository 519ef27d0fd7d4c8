"""Task templates, which steps and jobs refer to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.urls import reverse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiExample, extend_schema
from drf_spectacular.utils import extend_schema_serializer as shaped
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.reading import Nothing
from api.schema import (
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_MATCH_OPTIONAL,
    IF_NONE_MATCH,
    accepted,
    created,
    performed,
    retrieved,
    updated,
)
from execution.models import WorkerTask
from schedules import permissions
from schedules.models import TaskTemplate

from .base import ListedResource
from .definitions import ObjectField, TaskSerializer, UsedByField, WordsField
from .examples import STEP
from .tasks import QueuedJobSerializer, accept_task

EXAMPLE = OpenApiExample(
    "An HTTP request",
    {"name": "Health check", "step_type": STEP["step_type"], "config": STEP["config"], "max_retries": 5},
    request_only=True,
)


class TemplateUpdate(TaskSerializer, serializers.ModelSerializer[TaskTemplate]):
    class Meta:
        model = TaskTemplate
        fields = TaskTemplate.EDITABLE


@shaped(examples=[EXAMPLE])
class TemplateDefinition(TemplateUpdate):
    class Meta(TemplateUpdate.Meta):
        fields = ("name", *TaskTemplate.EDITABLE)


class TemplateSummary(serializers.ModelSerializer[TaskTemplate]):
    config = ObjectField()
    retry_on = WordsField()
    resources = WordsField()

    class Meta:
        model = TaskTemplate
        fields = ("id", "token", "status", "name", *TaskTemplate.EDITABLE)
        read_only_fields = fields


class TemplateSerializer(TemplateSummary):
    used_by = UsedByField("that use the template")

    class Meta(TemplateSummary.Meta):
        fields = (*TemplateSummary.Meta.fields, "used_by")
        read_only_fields = fields


class TemplateFilters(Filters):
    search = TextFilter(
        field_name="name",
        lookup_expr="icontains",
        help_text="Return only templates with a name that contains this text.",
    )
    status = filters.ChoiceFilter(choices=TaskTemplate.Status.choices)
    step_type = TextFilter()


class Templates(ListedResource):
    """List the task templates."""

    queryset = TaskTemplate.objects.all()
    serializer_class, row_class = TemplateSerializer, TemplateSummary
    filterset_class = TemplateFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("name", "-name", "id", "-id")
    needs: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("list", "retrieve"), "schedules.view_tasktemplate"),
        "create": "schedules.add_tasktemplate",
        **dict.fromkeys(("update", "partial_update", "archive", "restore"), "schedules.change_tasktemplate"),
        "run": permissions.RUN,
    }

    def version_of(self, row: TaskTemplate) -> object:
        return row.token

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(TemplateSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a template and the schedules that use it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=TemplateDefinition, parameters=[IDEMPOTENCY_KEY], responses=created(TemplateSerializer)
    )
    def create(self, request: Request) -> Response:
        """Create a template."""
        read = self.read(TemplateDefinition)
        return self.once(lambda: self._define(read))

    def _define(self, read: dict[str, Any]) -> Response:
        template = TaskTemplate.objects.define(**read, **self._who)
        url = reverse("api:template-detail", args=[template.pk])
        return self.respond_with(template, version=template.token, code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=TemplateDefinition, parameters=[IF_MATCH], responses=updated(TemplateSerializer))
    def update(self, request: Request, pk: str) -> Response:
        """Replace a template.

        Fields that are left out are set to their defaults. The name cannot be changed. The change affects all
        active and paused schedules that use the template.
        """
        written = self.editable_body(read_only=("id", "token", "status", "used_by"))
        return self._edit(TaskTemplate().definition() | self.read(TemplateDefinition, written))

    @extend_schema(request=TemplateUpdate, parameters=[IF_MATCH], responses=updated(TemplateSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change fields of a template.

        The change affects all active and paused schedules that use the template.
        """
        return self._edit(self.read(TemplateUpdate, partial=True))

    @extend_schema(request=Nothing, parameters=[IF_MATCH_OPTIONAL], responses=performed(TemplateSerializer))
    @action(detail=True, methods=["post"])
    def archive(self, request: Request, pk: str) -> Response:
        """Archive a template.

        New steps cannot use an archived template. Steps that already use the template keep working.
        """
        return self._perform("archive")

    @extend_schema(request=Nothing, parameters=[IF_MATCH_OPTIONAL], responses=performed(TemplateSerializer))
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, pk: str) -> Response:
        """Restore an archived template."""
        return self._perform("restore")

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepted(QueuedJobSerializer))
    @action(detail=True, methods=["post"])
    def run(self, request: Request, pk: str) -> Response:
        """Queue a single job from a template."""
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
        self.check_version(template.token)
        if read.pop("name", template.name) != template.name:
            raise ValidationError(
                {
                    "name": f"The name “{template.name}” cannot be changed, because steps refer to the "
                    "template by name."
                }
            )
        template.edit(token=template.token, changes=read, **self._who)
        return self.respond_with(template, version=template.token)

    def _perform(self, verb: str) -> Response:
        self.read(Nothing)
        template: TaskTemplate = self.get_object()
        token = template.token if self.check_version_if_given(template.token) else None
        getattr(template, verb)(initiator=self.by, now=self.now, token=token)
        return self.respond_with(template, version=template.token)
