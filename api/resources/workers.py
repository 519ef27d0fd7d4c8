"""Workers and pools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Count, Q
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters
from execution.models import Worker, WorkerTask
from execution.queue import pools

from .base import ListedResource, Resource

VIEW = "execution.view_worker"


class WorkerSerializer(serializers.ModelSerializer[Worker]):
    pools = serializers.ListField(
        child=serializers.CharField(),
        help_text="The pools that the worker serves. If empty, the worker serves all pools.",
    )
    busy = serializers.IntegerField(help_text="Number of tasks that the worker is running.")

    class Meta:
        model = Worker
        fields = (
            "id",
            "host",
            "pid",
            "pools",
            "seats",
            "busy",
            "status",
            "started_at",
            "beat_at",
            "lease_until",
            "ended_at",
            "clock_skew_seconds",
            "stale_refused",
        )


class WorkerFilters(Filters):
    status = filters.ChoiceFilter(choices=Worker.Status.choices)


class Workers(ListedResource):
    """List the workers that are running, and those that ended within the last day."""

    serializer_class = WorkerSerializer
    queryset = Worker.objects.all()
    filterset_class = WorkerFilters
    lookup_value_regex = "[0-9a-f-]{36}"
    orderings = ("-started_at", "started_at")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW, "retrieve": VIEW}

    def get_queryset(self) -> Any:
        processing = Count("tasks", filter=Q(tasks__status=WorkerTask.Status.PROCESSING))
        return Worker.objects.annotate(busy=processing)

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a worker."""
        return super().retrieve(request, *args, **kwargs)


class PoolSerializer(serializers.Serializer[pools.Pool]):
    name = serializers.CharField()
    workers = serializers.IntegerField(help_text="Number of running workers that serve the pool.")
    seats = serializers.IntegerField(
        help_text="Number of tasks that these workers can run at once. A worker that serves several pools "
        "counts for each pool."
    )
    limit = serializers.IntegerField(
        allow_null=True, help_text="The size of the limit `pool:<name>`. Null if this limit does not exist."
    )
    processing = serializers.IntegerField(source="tasks.processing")
    queued = serializers.IntegerField(
        source="tasks.queued", help_text="Number of tasks that are ready to start."
    )
    delayed = serializers.IntegerField(
        source="tasks.delayed", help_text="Number of tasks that are queued for a later time."
    )
    waiting = serializers.IntegerField(
        source="tasks.waiting", help_text="Number of tasks that are waiting for earlier steps."
    )
    oldest_wait_seconds = serializers.SerializerMethodField(
        help_text="How long the longest-waiting ready task of the pool has been waiting, in seconds."
    )
    reservation = serializers.ChoiceField(
        choices=["", "waiting", "running"],
        help_text="The state of the direct request in the pool: `waiting` or `running`. Empty if the pool "
        "has no direct request.",
    )

    def get_oldest_wait_seconds(self, pool: pools.Pool) -> float:
        return round(pool.waits_for(self.context["view"].now), 3)


class Pools(Resource):
    """List the pools that have workers, tasks, a limit or a reservation."""

    queryset = WorkerTask.objects.none()
    serializer_class = PoolSerializer
    pagination_class = None
    needs: ClassVar[Mapping[str, str]] = {"list": "execution.view_workertask"}

    @extend_schema(responses=PoolSerializer(many=True))
    def list(self, request: Request) -> Response:
        return Response(self.get_serializer(pools.look(self.now), many=True).data)
