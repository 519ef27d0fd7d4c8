from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import transaction
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.permissions import can
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, changes, makes, reads, removes
from api.versions import digest_of
from schedules.models import Secret

from .base import Listed

MOST_USERS = 100


class UserOfSecret(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    name = serializers.CharField()


class SecretListed(serializers.ModelSerializer[Secret]):
    changed_at = serializers.DateTimeField(help_text="When its value was set.")

    class Meta:
        model = Secret
        fields = ("name", "description", "created_at", "changed_at")
        read_only_fields = fields


class SecretSerializer(SecretListed):
    used_by = serializers.SerializerMethodField(
        help_text="The first open schedules with steps that refer to it; null if you may not see schedules."
    )

    class Meta(SecretListed.Meta):
        fields = (*SecretListed.Meta.fields, "used_by")  # type: ignore[assignment]
        read_only_fields = fields  # type: ignore[assignment]

    @extend_schema_field(UserOfSecret(many=True, allow_null=True))
    def get_used_by(self, secret: Secret) -> Any:
        if not can(self.context["request"], "schedules.view_schedule"):
            return None
        return UserOfSecret(secret.used_by()[:MOST_USERS], many=True).data


class SecretWriting(Strict[Any]):
    value = serializers.CharField(
        write_only=True,
        trim_whitespace=False,
        help_text="At least 4 characters, at most 64 KiB. Never shown again.",
    )
    description = serializers.CharField(max_length=1_000, allow_blank=True, required=False)


class SecretDefinition(SecretWriting):
    name = serializers.CharField(max_length=64, help_text="Steps refer to it as `{{ secrets.name }}`.")


class SecretFilters(Filters):
    name = TextFilter(lookup_expr="startswith", help_text="How the name begins.")


class Secrets(Listed):
    """Values that steps refer to by name. They can be set and replaced, never read."""

    queryset = Secret.objects.all()
    serializer_class = SecretSerializer
    filterset_class = SecretFilters
    lookup_field, lookup_value_regex = "name", "[a-z0-9_-]{1,64}"
    orderings = ("name", "-name")
    needs: ClassVar[Mapping[str, str]] = {
        "list": "schedules.view_secret",
        "retrieve": "schedules.view_secret",
        "create": "schedules.add_secret",
        "partial_update": "schedules.change_secret",
        "destroy": "schedules.delete_secret",
    }

    def get_serializer_class(self) -> Any:
        return SecretListed if self.action == "list" else SecretSerializer

    def version_of(self, row: Secret) -> object:
        """The encrypted value differs each time that a value is set, which a time would not."""
        return digest_of([row.description, row.token])

    @extend_schema(parameters=[IF_NONE_MATCH], responses=reads(SecretSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """A secret without its value, and which schedules use it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=SecretDefinition, parameters=[IDEMPOTENCY_KEY], responses=makes(SecretSerializer))
    @method_decorator(sensitive_variables())
    def create(self, request: Request) -> Response:
        """Define a secret."""
        read = self.read(SecretDefinition)
        return self.once(lambda: self._define(read))

    @sensitive_variables()
    def _define(self, read: dict[str, Any]) -> Response:
        secret = Secret.objects.define(**read, initiator=self.by, now=self.now)
        url = reverse("api:secret-detail", args=[secret.name])
        return self.shown(secret, version=self.version_of(secret), code=status.HTTP_201_CREATED, url=url)

    @extend_schema(request=SecretWriting, parameters=[IF_MATCH], responses=changes(SecretSerializer))
    @method_decorator(sensitive_variables())
    def partial_update(self, request: Request, name: str) -> Response:
        """Set a new value or description; what is left out stays."""
        read = self.read(SecretWriting, partial=True)
        with transaction.atomic():
            secret = self._held()
            secret.edit(**read, initiator=self.by, now=self.now)
        return self.shown(secret, version=self.version_of(secret))

    @extend_schema(parameters=[IF_MATCH], responses=removes())
    def destroy(self, request: Request, name: str) -> Response:
        """Delete it and its value; refused (409) while a schedule or template uses it."""
        with transaction.atomic():
            self._held().remove(initiator=self.by, now=self.now)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _held(self) -> Secret:
        """Locked, so that its version is still the same when it is changed."""
        self.queryset = Secret.objects.lock()
        secret: Secret = self.get_object()
        self.match(self.version_of(secret))
        return secret
