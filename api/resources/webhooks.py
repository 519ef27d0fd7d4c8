from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, WholeFilter
from api.reading import Nothing, Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, accepts, acts, changes, makes, reads, removes
from api.versions import digest_of
from schedules.models import Refused
from webhooks.events import KINDS, TEST
from webhooks.models import Delivery, Endpoint
from webhooks.models.endpoint import MOST_AMONG

from .base import Listed

TAKEN = "There is an endpoint with this name already: choose another name."
VIEW, CHANGE = "webhooks.view_endpoint", "webhooks.change_endpoint"


class EndpointSerializer(serializers.ModelSerializer[Endpoint]):
    events = serializers.ListField(source="kinds", child=serializers.CharField())
    schedules = serializers.ListField(
        child=serializers.IntegerField(), help_text="Ids; none: whatever the schedule."
    )

    class Meta:
        model = Endpoint
        fields: tuple[str, ...] = (
            "id",
            "name",
            "url",
            "description",
            "events",
            "schedules",
            "failures",
            "among",
            "status",
            "status_note",
            "is_disabled_by_itself",
            "failed_in_a_row",
            "succeeded_at",
            "created_at",
        )
        read_only_fields: tuple[str, ...] = fields


class SigningSecretSerializer(serializers.Serializer[Any]):
    secret = serializers.CharField(help_text="What its deliveries are signed with. It is shown only now.")


class NewEndpointSerializer(EndpointSerializer):
    secret = serializers.CharField(help_text="What its deliveries are signed with. It is shown only now.")

    class Meta(EndpointSerializer.Meta):
        fields = (*EndpointSerializer.Meta.fields, "secret")
        read_only_fields: tuple[str, ...] = fields


class EndpointWriting(Strict[Any]):
    name = serializers.CharField(max_length=100)
    url = serializers.CharField(max_length=2_000)
    description = serializers.CharField(max_length=1_000, allow_blank=True, required=False)
    events = serializers.ListField(
        source="kinds", child=serializers.ChoiceField(choices=list(KINDS)), min_length=1
    )
    schedules = serializers.ListField(child=serializers.IntegerField(), required=False)
    failures = serializers.IntegerField(min_value=1, max_value=MOST_AMONG, required=False)
    among = serializers.IntegerField(
        min_value=1,
        max_value=MOST_AMONG,
        required=False,
        help_text="`schedule.failing` is told when so many `failures` are `among` the last executions.",
    )


class Rotation(Strict[Any]):
    secret = serializers.CharField(
        required=False,
        write_only=True,
        help_text="`whsec_…`, if it is to be one of yours. By default one is made.",
    )


class EndpointDefinition(Rotation, EndpointWriting):
    pass


class Note(Strict[Any]):
    note = serializers.CharField(max_length=500, allow_blank=True, default="")


class SentSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="Of the delivery.")
    url = serializers.URLField()


class EndpointFilters(Filters):
    status = filters.ChoiceFilter(choices=[("enabled", "enabled"), ("disabled", "disabled")])


class Webhooks(Listed):
    """Web addresses that are told of events."""

    queryset = Endpoint.objects.present()
    serializer_class = EndpointSerializer
    filterset_class = EndpointFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("id", "-id")
    needs: ClassVar[Mapping[str, str]] = {
        "list": VIEW,
        "retrieve": VIEW,
        "create": "webhooks.add_endpoint",
        "destroy": "webhooks.delete_endpoint",
        **dict.fromkeys(("partial_update", "rotate", "test", "enable", "disable"), CHANGE),
    }

    def version_of(self, row: Endpoint) -> object:
        return digest_of([row.definition(), row.url, row.status])

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(EndpointSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One webhook, and how it has been doing."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=EndpointDefinition, responses=makes(NewEndpointSerializer))
    @method_decorator(sensitive_variables())
    def create(self, request: Request) -> Response:
        """A new webhook and its secret, which is in this answer only.

        There is no Idempotency-Key: that would keep the answer.
        """
        read = self.read(EndpointDefinition)
        try:
            endpoint, secret = Endpoint.objects.define(**read, initiator=self.by, now=self.now)
        except (ValidationError, IntegrityError) as error:
            raise _wrong(error) from error
        url = reverse("api:webhook-detail", args=[endpoint.pk])
        made = self.shown(endpoint, version=self.version_of(endpoint), code=status.HTTP_201_CREATED, url=url)
        made.data = {**made.data, "secret": secret}
        return made

    @extend_schema(request=EndpointWriting, parameters=[IF_MATCH], responses=changes(EndpointSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Changes some of its fields."""
        read = self.read(EndpointWriting, partial=True)
        try:
            with transaction.atomic():
                endpoint = self._held()
                endpoint.edit(changes=read, initiator=self.by, now=self.now)
        except (ValidationError, IntegrityError) as error:
            raise _wrong(error) from error
        return self.shown(endpoint, version=self.version_of(endpoint))

    @extend_schema(parameters=[IF_MATCH], responses=removes())
    def destroy(self, request: Request, pk: str) -> Response:
        """For good, and its secret with it; the record of what it was told stays."""
        with transaction.atomic():
            self._held().remove(initiator=self.by, now=self.now)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=Rotation, responses=acts(SigningSecretSerializer))
    @action(detail=True, methods=["post"])
    @method_decorator(sensitive_variables())
    def rotate(self, request: Request, pk: str) -> Response:
        """A new secret; for a day, both of them sign."""
        endpoint, read = self.get_object(), self.read(Rotation)
        secret = endpoint.rotate(initiator=self.by, now=self.now, **read)
        return Response({"secret": secret})

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepts(SentSerializer))
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: str) -> Response:
        """Sends it the event `endpoint.test`."""
        endpoint, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: _sent(self, endpoint.test(initiator=self.by, now=self.now)))

    @extend_schema(request=Nothing, responses=acts(EndpointSerializer))
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, pk: str) -> Response:
        """From now on it is told of events again; of those meanwhile it is not."""
        endpoint, _ = self.get_object(), self.read(Nothing)
        if not endpoint.enable(initiator=self.by, now=self.now):
            raise Refused(f"“{endpoint}” is enabled already.")
        return self._shown_anew()

    @extend_schema(request=Note, responses=acts(EndpointSerializer))
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, pk: str) -> Response:
        """Nothing more is sent to it, and what waits has failed."""
        endpoint, read = self.get_object(), self.read(Note)
        if not endpoint.disable(initiator=self.by, now=self.now, note=read["note"]):
            raise Refused(f"“{endpoint}” is not enabled.")
        return self._shown_anew()

    def _shown_anew(self) -> Response:
        endpoint = self.get_object()
        return self.shown(endpoint, version=self.version_of(endpoint))

    def _held(self) -> Endpoint:
        """Locked, so that nobody changes it between the look at its version and the change."""
        self.queryset = Endpoint.objects.present().lock()
        endpoint: Endpoint = self.get_object()
        self.match(self.version_of(endpoint))
        return endpoint


def _wrong(error: ValidationError | IntegrityError) -> serializers.ValidationError:
    """By the names that fields have here. The one rule about the whole endpoint is about its name."""
    if isinstance(error, IntegrityError):
        return serializers.ValidationError({"name": TAKEN})
    fields = {"kinds": "events", NON_FIELD_ERRORS: "name"}
    return serializers.ValidationError(
        {fields.get(at, at): texts for at, texts in error.message_dict.items()}
    )


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    endpoint = serializers.IntegerField(source="endpoint_id")
    event = serializers.CharField(source="kind")
    webhook_id = serializers.CharField(help_text="The header `webhook-id`: the same for all its tries.")

    class Meta:
        model = Delivery
        fields: tuple[str, ...] = (
            "id",
            "endpoint",
            "event",
            "webhook_id",
            "status",
            "tries",
            "tries_left",
            "created_at",
            "next_try_at",
            "ended_at",
            "note",
        )
        read_only_fields: tuple[str, ...] = fields


class TrySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    seconds = serializers.FloatField()
    status = serializers.IntegerField(allow_null=True, help_text="Of the answer, if there was one.")
    answer = serializers.CharField(help_text="How it began.")
    error = serializers.CharField()


class DeliveryDetailSerializer(DeliverySerializer):
    body = serializers.SerializerMethodField()
    log = TrySerializer(many=True, help_text="Its last tries, the newest last.")

    class Meta(DeliverySerializer.Meta):
        fields = (*DeliverySerializer.Meta.fields, "log", "body")
        read_only_fields: tuple[str, ...] = fields

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_body(self, delivery: Delivery) -> Any:
        return json.loads(delivery.body)


class DeliveryFilters(Filters):
    endpoint = WholeFilter(field_name="endpoint_id", help_text="The id of a webhook.")
    status = filters.ChoiceFilter(choices=Delivery.Status.choices)
    event = filters.ChoiceFilter(field_name="kind", choices=[(kind, kind) for kind in (*KINDS, TEST)])


class Deliveries(Listed):
    """Events on their way to webhooks, and those that arrived or failed to."""

    queryset = Delivery.objects.all()
    serializer_class = DeliverySerializer
    filterset_class = DeliveryFilters
    lookup_value_regex = "[0-9]{1,18}"
    orderings = ("-id", "id")
    needs: ClassVar[Mapping[str, str]] = {
        "list": "webhooks.view_delivery",
        "retrieve": "webhooks.view_delivery",
        "redeliver": "webhooks.change_delivery",
    }

    def get_queryset(self) -> Any:
        return Delivery.objects.defer("body", "log") if self.action == "list" else Delivery.objects.all()

    def get_serializer_class(self) -> Any:
        return DeliveryDetailSerializer if self.action == "retrieve" else DeliverySerializer

    @extend_schema(responses=DeliveryDetailSerializer)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """One delivery: what was sent, and how each try went."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepts(SentSerializer))
    @action(detail=True, methods=["post"])
    def redeliver(self, request: Request, pk: str) -> Response:
        """The same event again, with the same id and content."""
        delivery, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: self._redeliver(delivery))

    def _redeliver(self, delivery: Delivery) -> Response:
        delivery.redeliver(initiator=self.by, now=self.now)
        return _sent(self, delivery)


def _sent(view: Listed, delivery: Delivery) -> Response:
    return view.accepted({"id": delivery.pk}, url=reverse("api:delivery-detail", args=[delivery.pk]))
