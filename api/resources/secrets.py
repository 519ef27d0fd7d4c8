"""Secrets: encrypted values that steps refer to by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import transaction
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from api.filtering import Filters, TextFilter
from api.reading import Strict
from api.schema import IDEMPOTENCY_KEY, IF_MATCH, IF_NONE_MATCH, created, deleted, retrieved, updated
from api.versions import digest_of
from schedules.models import Secret

from .base import ListedResource
from .definitions import UsedByField


class SecretSummary(serializers.ModelSerializer[Secret]):
    changed_at = serializers.DateTimeField(help_text="When the value was last set.")

    class Meta:
        model = Secret
        fields = ("name", "description", "created_at", "changed_at")
        read_only_fields = fields


class SecretSerializer(SecretSummary):
    used_by = UsedByField("whose steps use the secret")

    class Meta(SecretSummary.Meta):
        fields = (*SecretSummary.Meta.fields, "used_by")  # type: ignore[assignment]
        read_only_fields = fields  # type: ignore[assignment]


class SecretUpdate(Strict[Any]):
    value = serializers.CharField(
        write_only=True,
        trim_whitespace=False,
        help_text="The value of the secret: at least 4 characters, at most 64 KiB. The value is never shown "
        "again.",
    )
    description = serializers.CharField(max_length=1_000, allow_blank=True, required=False)


class NewSecret(SecretUpdate):
    name = serializers.CharField(
        max_length=64,
        help_text="The name of the secret. Steps refer to a secret with the name `smtp` as `{{ secrets.smtp "
        "}}`.",
    )


class SecretFilters(Filters):
    name = TextFilter(
        lookup_expr="startswith", help_text="Return only secrets with a name that begins with this text."
    )


class Secrets(ListedResource):
    """List the secrets.

    Values can be set and replaced, but never read.
    """

    queryset = Secret.objects.all()
    serializer_class, row_class = SecretSerializer, SecretSummary
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

    def version_of(self, row: Secret) -> object:
        """Return a digest of the description and the encrypted value. Setting a value changes the digest."""
        return digest_of([row.description, row.token])

    @extend_schema(parameters=[IF_NONE_MATCH], responses=retrieved(SecretSerializer))
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Retrieve a secret, without its value, and the schedules that use it."""
        return super().retrieve(request, *args, **kwargs)

    @extend_schema(request=NewSecret, parameters=[IDEMPOTENCY_KEY], responses=created(SecretSerializer))
    @method_decorator(sensitive_variables())
    def create(self, request: Request) -> Response:
        """Create a secret."""
        read = self.read(NewSecret)
        return self.once(lambda: self._define(read))

    @sensitive_variables()
    def _define(self, read: dict[str, Any]) -> Response:
        secret = Secret.objects.define(**read, initiator=self.by, now=self.now)
        url = reverse("api:secret-detail", args=[secret.name])
        return self.respond_with(
            secret, version=self.version_of(secret), code=status.HTTP_201_CREATED, url=url
        )

    @extend_schema(request=SecretUpdate, parameters=[IF_MATCH], responses=updated(SecretSerializer))
    @method_decorator(sensitive_variables())
    def partial_update(self, request: Request, name: str) -> Response:
        """Set a new value or a new description for a secret."""
        read = self.read(SecretUpdate, partial=True)
        with transaction.atomic():
            secret = self._locked()
            secret.edit(**read, initiator=self.by, now=self.now)
        return self.respond_with(secret, version=self.version_of(secret))

    @extend_schema(parameters=[IF_MATCH], responses=deleted())
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a secret.

        The request is refused (409) while a schedule or template uses the secret.
        """
        with transaction.atomic():
            self._locked().remove(initiator=self.by, now=self.now)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _locked(self) -> Secret:
        locked: Secret = self.locked(Secret.objects.lock())
        return locked
