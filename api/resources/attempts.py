"""Serializers of attempts and initiators, shared by several resources."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities.models import Activity


class InitiatorSerializer(serializers.Serializer[Activity]):
    type = serializers.CharField(
        source="initiator_type", help_text="The kind of initiator: `user`, `token`, `schedule` or `system`."
    )
    id = serializers.CharField(source="initiator_id")
    name = serializers.CharField(source="initiator_name")


@extend_schema_field({})
class AnyJson(serializers.JSONField):
    """Any JSON value."""


class ActivityState(serializers.ChoiceField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(choices=Activity.Status.choices, **kwargs)


class AttemptSerializer(serializers.ModelSerializer[Activity]):
    class Meta:
        model = Activity
        fields = (
            "id",
            "attempt",
            "status",
            "worker_id",
            "created_at",
            "executed_at",
            "finished_at",
            "progress_done",
            "progress_total",
            "message",
            "error",
            "permanently_failed",
            "items_total",
            "items_failed",
        )
        read_only_fields = fields
        extra_kwargs = {
            "id": {
                "help_text": "The id of the attempt. The activity with the same id contains the output, "
                "items and result."
            }
        }
