"""Reservations of seats by direct requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.schema import performed
from execution.models import Reservation
from execution.models.reservation import STATES
from schedules.models import Refused
from schedules.permissions import RUN

from .base import ListedResource
from .executions import Reason

VIEW = "execution.view_reservation"


class ReservationSerializer(serializers.ModelSerializer[Reservation]):
    state = serializers.ChoiceField(choices=list(STATES), read_only=True)
    limits = serializers.ListField(
        child=serializers.CharField(),
        read_only=True,
        help_text="The keys of the limits towards which the step of the direct request counts.",
    )
    taken_at = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="When the step started. Null if the direct request is still waiting.",
    )

    class Meta:
        model = Reservation
        fields = (
            "id",
            "pool",
            "state",
            "holder",
            "limits",
            "activity",
            "created_at",
            "taken_at",
            "lease_until",
            "released_at",
        )
        read_only_fields = fields


class ReservationFilters(Filters):
    pool = TextFilter()
    state = filters.ChoiceFilter(choices=[(name, name) for name in STATES], method="in_state")

    def in_state(self, rows: QuerySet[Reservation], name: str, value: str) -> QuerySet[Reservation]:
        return rows.filter(STATES[value])


class Reservations(ListedResource):
    """List the reservations of direct requests.

    A reservation is a seat (room for one task) that a direct request uses or waits for. For each pool, the
    list also contains the last reservation that was released. `POST direct` creates a reservation, runs the
    step and releases the reservation.
    """

    queryset = Reservation.objects.all()
    serializer_class = ReservationSerializer
    filterset_class = ReservationFilters
    lookup_value_regex = "[0-9a-f-]{36}"
    orderings = ("-created_at", "created_at")
    needs: ClassVar[Mapping[str, str]] = {"list": VIEW, "retrieve": VIEW, "release": RUN}

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a reservation."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=Reason, responses=performed(ReservationSerializer))
    @action(detail=True, methods=["post"])
    def release(self, request: Request, pk: str) -> Response:
        """Release a reservation immediately.

        The step is stopped, and the direct request fails with 409 (`seat-lost`).
        """
        reservation, read = self.get_object(), self.read(Reason)
        if not reservation.free(initiator=self.by, now=self.now, reason=read["reason"]):
            raise Refused(f"The reservation “{reservation}” was already released.")
        return self.respond_with(self.get_object())
