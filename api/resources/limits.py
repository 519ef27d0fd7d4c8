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
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, changes, makes, reads, removes
from api.versions import digest_of
from execution.models import Limit
from execution.models.limit import queue_at_rest
from execution.queue.limited import usage

from .base import Listed


class LimitSerializer(serializers.ModelSerializer[Limit]):
    running = serializers.SerializerMethodField(help_text="How many tasks count for it just now.")

    class Meta:
        model = Limit
        fields = ("key", "size", "note", "running")

    def get_running(self, limit: Limit) -> int:
        return int(self.context["usage"].get(limit.key, (0, 0))[0])


class LimitWriting(Strict[Any]):
    size = serializers.IntegerField(
        min_value=0, max_value=100_000, help_text="0: nothing with this key starts."
    )
    note = serializers.CharField(max_length=200, allow_blank=True, required=False)


class LimitDefinition(LimitWriting):
    key = serializers.CharField(max_length=100, help_text="Such as `global`, `pool:default`, `type:sql`.")


class LimitFilters(Filters):
    key = TextFilter(lookup_expr="istartswith", help_text="How the key begins.")


class Limits(Listed):
    """How many tasks with one key run at once."""

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

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(LimitSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """A limit, and how many tasks count for it just now."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=LimitDefinition, parameters=[IDEMPOTENCY_KEY], responses=makes(LimitSerializer))
    def create(self, request: Request) -> Response:
        """Limit how many tasks with a key run at once."""
        return self.once(self._define)

    @extend_schema(request=LimitWriting, parameters=[IF_MATCH], responses=changes(LimitSerializer))
    def partial_update(self, request: Request, key: str) -> Response:
        """Change its size or its note."""
        read = self.read(LimitWriting, partial=True)
        with queue_at_rest():
            limit = self._held()
            limit.edit(changes=read, initiator=self.by, now=self.now)
        return self.shown(limit, version=self.version_of(limit))

    @extend_schema(parameters=[IF_MATCH], responses=removes())
    def destroy(self, request: Request, key: str) -> Response:
        """Remove it: as many as there is room for run at once."""
        with transaction.atomic():
            self._held()
        self.get_object().remove(initiator=self.by, now=self.now)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _define(self) -> Response:
        limit = Limit.objects.define(**self.read(LimitDefinition), initiator=self.by, now=self.now)
        return self.shown(limit, version=self.version_of(limit), code=status.HTTP_201_CREATED)

    def _held(self) -> Limit:
        """Locked, so that nobody changes it between the look at its version and the change."""
        self.queryset = Limit.objects.select_for_update(of=("self",), no_key=True)
        limit: Limit = self.get_object()
        self.match(self.version_of(limit))
        return limit
