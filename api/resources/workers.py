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

from .base import Listed, Resource

VIEW = "execution.view_worker"


class WorkerSerializer(serializers.ModelSerializer[Worker]):
    pools = serializers.ListField(
        child=serializers.CharField(), help_text="Those that it serves; empty: all."
    )
    busy = serializers.IntegerField(help_text="How many of its seats are taken.")

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


class Workers(Listed):
    """Worker processes: those that are alive, and for a day those that were."""

    serializer_class = WorkerSerializer
    queryset = Worker.objects.all()
    filterset_class = WorkerFilters
    lookup_value_regex = "[0-9a-f-]{36}"
    orderings = ("-started_at", "started_at")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW, "retrieve": VIEW}

    def get_queryset(self) -> Any:
        processing = Count("tasks", filter=Q(tasks__status=WorkerTask.Status.PROCESSING))
        return Worker.objects.annotate(busy=processing)


class PoolSerializer(serializers.Serializer[pools.Pool]):
    name = serializers.CharField()
    workers = serializers.IntegerField(help_text="How many living workers serve it.")
    seats = serializers.IntegerField(help_text="How many tasks they run at once; shared with other pools.")
    limit = serializers.IntegerField(allow_null=True, help_text="The size of the limit `pool:…`, if any.")
    processing = serializers.IntegerField(source="tasks.processing")
    queued = serializers.IntegerField(source="tasks.queued", help_text="Ready to start.")
    delayed = serializers.IntegerField(source="tasks.delayed", help_text="Queued for a later time.")
    waiting = serializers.IntegerField(source="tasks.waiting", help_text="For the steps before them.")
    oldest_wait_seconds = serializers.SerializerMethodField(
        help_text="For how long the first of its queued tasks could have started."
    )
    reservation = serializers.ChoiceField(
        choices=["", "waiting", "running"], help_text="Of the direct request that has its next seat."
    )

    def get_oldest_wait_seconds(self, pool: pools.Pool) -> float:
        return round(pool.waits_for(self.context["view"].now), 3)


class Pools(Resource):
    """Where tasks are queued: those that are served, limited, reserved or have tasks."""

    queryset = WorkerTask.objects.none()
    serializer_class = PoolSerializer
    pagination_class = None
    needs: ClassVar[Mapping[str, str]] = {"list": "execution.view_workertask"}

    @extend_schema(responses=PoolSerializer(many=True))
    def list(self, request: Request) -> Response:
        return Response(self.get_serializer(pools.look(self.now), many=True).data)
