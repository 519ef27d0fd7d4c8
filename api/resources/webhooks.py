"""Webhooks and their deliveries."""

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
from api.schema import (
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    accepted,
    created,
    deleted,
    performed,
    retrieved,
    updated,
)
from api.versions import digest_of
from schedules.models import Refused
from webhooks.events import KINDS, TEST
from webhooks.models import Delivery, Endpoint
from webhooks.models.endpoint import MOST_AMONG

from .base import ListedResource

TAKEN = "A webhook with this name already exists. Choose another name."
VIEW, CHANGE = "webhooks.view_endpoint", "webhooks.change_endpoint"


class WebhookSerializer(serializers.ModelSerializer[Endpoint]):
    events = serializers.ListField(source="kinds", child=serializers.CharField())
    schedules = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="The ids of the schedules whose events are sent. If empty, all events are sent, including "
        "those that do not concern a schedule.",
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


class RotatedSecretSerializer(serializers.Serializer[Any]):
    secret = serializers.CharField(
        help_text="The secret with which deliveries are signed. The secret is included only in this response."
    )


class CreatedWebhookSerializer(WebhookSerializer):
    secret = serializers.CharField(
        help_text="The secret with which deliveries are signed. The secret is included only in this response."
    )

    class Meta(WebhookSerializer.Meta):
        fields = (*WebhookSerializer.Meta.fields, "secret")
        read_only_fields: tuple[str, ...] = fields


class WebhookUpdate(Strict[Any]):
    name = serializers.CharField(max_length=100)
    url = serializers.CharField(
        max_length=2_000, help_text="The URL to which events are sent as POST requests."
    )
    description = serializers.CharField(max_length=1_000, allow_blank=True, required=False)
    events = serializers.ListField(
        source="kinds",
        child=serializers.ChoiceField(choices=list(KINDS)),
        min_length=1,
        help_text="The types of events to send.",
    )
    schedules = serializers.ListField(
        child=serializers.IntegerField(),
        required=False,
        help_text="The ids of the schedules whose events are sent. If empty, all events are sent, including "
        "those that do not concern a schedule.",
    )
    failures = serializers.IntegerField(
        min_value=1,
        max_value=MOST_AMONG,
        required=False,
        help_text="Send the event `schedule.failing` when this many of the last `among` executions of a "
        "schedule have failed.",
    )
    among = serializers.IntegerField(
        min_value=1,
        max_value=MOST_AMONG,
        required=False,
        help_text="How many of the last executions of a schedule are considered for the event "
        "`schedule.failing`.",
    )


class RotateOptions(Strict[Any]):
    secret = serializers.CharField(
        required=False,
        write_only=True,
        help_text="Your own signing secret, in the format `whsec_…`. If this field is left out, a new secret "
        "is generated.",
    )


class NewWebhook(RotateOptions, WebhookUpdate):
    pass


class DisableOptions(Strict[Any]):
    note = serializers.CharField(
        max_length=500, allow_blank=True, default="", help_text="The reason why the webhook is disabled."
    )


class AcceptedDeliverySerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="The id of the delivery.")
    url = serializers.URLField(
        help_text="The URL at which you can follow the delivery. The Location header contains the same URL."
    )


class WebhookFilters(Filters):
    status = filters.ChoiceFilter(choices=[("enabled", "enabled"), ("disabled", "disabled")])


class Webhooks(ListedResource):
    """List the webhooks: URLs to which events are sent."""

    queryset = Endpoint.objects.present()
    serializer_class = WebhookSerializer
    filterset_class = WebhookFilters
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

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(WebhookSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a webhook and its status."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=NewWebhook, responses=created(CreatedWebhookSerializer))
    @method_decorator(sensitive_variables())
    def create(self, request: Request) -> Response:
        """Create a webhook.

        The signing secret is included only in this response. Idempotency keys are not supported, because the
        response is not stored.
        """
        read = self.read(NewWebhook)
        try:
            endpoint, secret = Endpoint.objects.define(**read, initiator=self.by, now=self.now)
        except (ValidationError, IntegrityError) as error:
            raise _field_errors(error) from error
        url = reverse("api:webhook-detail", args=[endpoint.pk])
        made = self.respond_with(
            endpoint, version=self.version_of(endpoint), code=status.HTTP_201_CREATED, url=url
        )
        made.data = {**made.data, "secret": secret}
        return made

    @extend_schema(request=WebhookUpdate, parameters=[IF_MATCH], responses=updated(WebhookSerializer))
    def partial_update(self, request: Request, pk: str) -> Response:
        """Change fields of a webhook."""
        read = self.read(WebhookUpdate, partial=True)
        try:
            with transaction.atomic():
                endpoint = self._locked()
                endpoint.edit(changes=read, initiator=self.by, now=self.now)
        except (ValidationError, IntegrityError) as error:
            raise _field_errors(error) from error
        return self.respond_with(endpoint, version=self.version_of(endpoint))

    @extend_schema(parameters=[IF_MATCH], responses=deleted())
    def destroy(self, request: Request, pk: str) -> Response:
        """Delete a webhook and its secret.

        The history of its deliveries is kept.
        """
        with transaction.atomic():
            self._locked().remove(initiator=self.by, now=self.now)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=RotateOptions, responses=performed(RotatedSecretSerializer))
    @action(detail=True, methods=["post"])
    @method_decorator(sensitive_variables())
    def rotate(self, request: Request, pk: str) -> Response:
        """Rotate the signing secret of a webhook.

        For 24 hours, deliveries are signed with both the new and the old secret.
        """
        endpoint, read = self.get_object(), self.read(RotateOptions)
        secret = endpoint.rotate(initiator=self.by, now=self.now, **read)
        return Response({"secret": secret})

    @extend_schema(
        request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedDeliverySerializer)
    )
    @action(detail=True, methods=["post"])
    def test(self, request: Request, pk: str) -> Response:
        """Send a test event (`endpoint.test`) to a webhook."""
        endpoint, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: _accepted_delivery(self, endpoint.test(initiator=self.by, now=self.now)))

    @extend_schema(request=Nothing, responses=performed(WebhookSerializer))
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, pk: str) -> Response:
        """Enable a webhook.

        Events that happened while the webhook was disabled are not sent.
        """
        endpoint, _ = self.get_object(), self.read(Nothing)
        if not endpoint.enable(initiator=self.by, now=self.now):
            raise Refused(f"“{endpoint}” is already enabled.")
        return self._respond_with_current()

    @extend_schema(request=DisableOptions, responses=performed(WebhookSerializer))
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, pk: str) -> Response:
        """Disable a webhook.

        No further events are sent, and pending deliveries fail.
        """
        endpoint, read = self.get_object(), self.read(DisableOptions)
        if not endpoint.disable(initiator=self.by, now=self.now, note=read["note"]):
            raise Refused(f"“{endpoint}” is already disabled.")
        return self._respond_with_current()

    def _respond_with_current(self) -> Response:
        endpoint = self.get_object()
        return self.respond_with(endpoint, version=self.version_of(endpoint))

    def _locked(self) -> Endpoint:
        locked: Endpoint = self.locked(Endpoint.objects.present().lock())
        return locked


def _field_errors(error: ValidationError | IntegrityError) -> serializers.ValidationError:
    """Return the errors by the API's field names.

    An error without a field means that the name is already taken, so it is returned under `name`.
    """
    if isinstance(error, IntegrityError):
        return serializers.ValidationError({"name": TAKEN})
    fields = {"kinds": "events", NON_FIELD_ERRORS: "name"}
    return serializers.ValidationError(
        {fields.get(at, at): texts for at, texts in error.message_dict.items()}
    )


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    endpoint = serializers.IntegerField(
        source="endpoint_id", help_text="The id of the webhook to which the event is sent."
    )
    event = serializers.CharField(source="kind")
    webhook_id = serializers.CharField(
        help_text="The value of the `webhook-id` header, which is the same for all attempts."
    )

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


class DeliveryTrySerializer(serializers.Serializer[Any]):
    at = serializers.DateTimeField()
    seconds = serializers.FloatField()
    status = serializers.IntegerField(
        allow_null=True, help_text="The HTTP status of the response. Null if no response was received."
    )
    answer = serializers.CharField(help_text="The beginning of the response body.")
    error = serializers.CharField()


class DeliveryDetailSerializer(DeliverySerializer):
    body = serializers.SerializerMethodField(help_text="The JSON content that is sent to the webhook.")
    log = DeliveryTrySerializer(many=True, help_text="The most recent attempts, oldest first.")

    class Meta(DeliverySerializer.Meta):
        fields = (*DeliverySerializer.Meta.fields, "log", "body")
        read_only_fields: tuple[str, ...] = fields

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_body(self, delivery: Delivery) -> Any:
        return json.loads(delivery.body)


class DeliveryFilters(Filters):
    endpoint = WholeFilter(
        field_name="endpoint_id", help_text="Return only deliveries to the webhook with this id."
    )
    status = filters.ChoiceFilter(choices=Delivery.Status.choices)
    event = filters.ChoiceFilter(field_name="kind", choices=[(kind, kind) for kind in (*KINDS, TEST)])


class Deliveries(ListedResource):
    """List the deliveries of events to webhooks."""

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
        """Retrieve a delivery with its content and attempts."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(
        request=Nothing, parameters=[IDEMPOTENCY_KEY], responses=accepted(AcceptedDeliverySerializer)
    )
    @action(detail=True, methods=["post"])
    def redeliver(self, request: Request, pk: str) -> Response:
        """Send a delivery again, with the same id and content."""
        delivery, _ = self.get_object(), self.read(Nothing)
        return self.once(lambda: self._redeliver(delivery))

    def _redeliver(self, delivery: Delivery) -> Response:
        delivery.redeliver(initiator=self.by, now=self.now)
        return _accepted_delivery(self, delivery)


def _accepted_delivery(view: ListedResource, delivery: Delivery) -> Response:
    return view.accepted({"id": delivery.pk}, url=reverse("api:delivery-detail", args=[delivery.pk]))
