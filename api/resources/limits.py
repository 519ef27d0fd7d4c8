"""Limits on how many tasks with the same key run at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import transaction
from django.utils.functional import SimpleLazyObject
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, created, deleted, retrieved, updated
from api.versions import digest_of
from execution.models import Limit
from execution.models.limit import queue_at_rest
from execution.queue.snapshot import usage

from .base import ListedResource


class LimitSerializer(serializers.ModelSerializer[Limit]):
    running = serializers.SerializerMethodField(
        help_text="Number of tasks and direct requests that currently count towards the limit."
    )

    class Meta:
        model = Limit
        fields = ("key", "size", "note", "running")

    def get_running(self, limit: Limit) -> int:
        return int(self.context["usage"].get(limit.key, (0, 0))[0])


class LimitUpdate(Strict[Any]):
    size = serializers.IntegerField(
        min_value=0,
        max_value=100_000,
        help_text="Number of tasks with this key that can run at once. If 0, no task with this key starts.",
    )
    note = serializers.CharField(max_length=200, allow_blank=True, required=False)


class NewLimit(LimitUpdate):
    key = serializers.CharField(
        max_length=100,
        help_text="Which tasks to limit: all tasks (`global`), or those of a pool (`pool:default`), a step "
        "type (`type:sql`) or a resource (`resource:connected-system:7`).",
    )


class LimitFilters(Filters):
    key = TextFilter(
        lookup_expr="istartswith", help_text="Return only limits with a key that begins with this text."
    )


class Limits(ListedResource):
    """List the limits on how many tasks with the same key run at once."""

    queryset = Limit.objects.all()
    serializer_class = LimitSerializer
    filterset_class = LimitFilters
    lookup_field, lookup_value_regex = "key", "[^/]+"
    orderings = ("key", "-key")
    needs: ClassVar[Mapping[str, str]] = {
        "list": "execution.view_limit",
        "retrieve": "execution.view_limit",
        "create": "execution.add_limit",
        "partial_update": "execution.change_limit",
        "destroy": "execution.delete_limit",
    }

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "usage": SimpleLazyObject(usage)}

    def version_of(self, row: Limit) -> object:
        return digest_of(row.definition())

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(LimitSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a limit, with the number of tasks that currently count towards the limit."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=NewLimit, parameters=[IDEMPOTENCY_KEY], responses=created(LimitSerializer))
    def create(self, request: Request) -> Response:
        """Create a limit."""
        return self.once(self._define)

    @extend_schema(request=LimitUpdate, parameters=[IF_MATCH], responses=updated(LimitSerializer))
    def partial_update(self, request: Request, key: str) -> Response:
        """Change the size or the note of a limit."""
        read = self.read(LimitUpdate, partial=True)
        with queue_at_rest():
            limit = self._locked()
            limit.edit(changes=read, initiator=self.by, now=self.now)
        return self.respond_with(limit, version=self.version_of(limit))

    @extend_schema(parameters=[IF_MATCH], responses=deleted())
    def destroy(self, request: Request, key: str) -> Response:
        """Delete a limit.

        Tasks with this key are then restricted only by the seats of the workers and by other limits.
        """
        with transaction.atomic():
            self._locked()
        self.get_object().remove(initiator=self.by, now=self.now)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _define(self) -> Response:
        limit = Limit.objects.define(**self.read(NewLimit), initiator=self.by, now=self.now)
        return self.respond_with(limit, version=self.version_of(limit), code=status.HTTP_201_CREATED)

    def _locked(self) -> Limit:
        locked: Limit = self.locked(Limit.objects.select_for_update(of=("self",), no_key=True))
        return locked
