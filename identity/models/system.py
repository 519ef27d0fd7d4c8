"""Connected systems, and the types of objects and attributes that JIM reads from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower

from execution.models import Limit, WorkerTask
from identity.connectors.connector import Connector, connectors
from identity.shape import AttributeShape, TypeShape
from identity.values import Kind, Match
from operations.initiator import Initiator
from schedules.registry import ConfigError

from .defined import Defined, DefinedQuerySet, sentence, store_children

METAVERSE = "metaverse"


class ConnectedSystem(Defined):
    """A system whose objects JIM imports, or that JIM exports to, such as an HR file or a directory."""

    class Status(models.TextChoices):
        ACTIVE = "active"
        REBUILDING = "rebuilding", "Rebuilding: cleared, and not yet imported and synchronised again"
        DELETING = "deleting"

    noun = "connected system"

    connector = models.CharField(max_length=40)
    config = models.JSONField(default=dict, blank=True)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.ACTIVE)
    watermark = models.JSONField(
        null=True, blank=True, help_text="The state of the system when it was last imported completely."
    )
    running_activity_id = models.BigIntegerField(
        null=True, blank=True, help_text="The run that currently works on this system."
    )
    created_at = models.DateTimeField()
    imported_at = models.DateTimeField(null=True, blank=True)
    synchronised_at = models.DateTimeField(null=True, blank=True)

    objects = DefinedQuerySet["ConnectedSystem"].as_manager()

    class Meta:
        default_permissions = ("view",)
        permissions = [
            ("define_identity", "Can define connected systems, identity types and sync rules"),
            ("delete_accounts", "Can clear and delete connected systems"),
        ]
        constraints = [models.UniqueConstraint(Lower("name"), name="system_name_once")]

    @property
    def resource(self) -> str:
        """Return the resource that each run of this system holds, so that runs follow one another."""
        return f"connected-system:{self.pk}"

    def definition(self) -> dict[str, Any]:
        """Return the document that defines this system."""
        types = self.types.prefetch_related("attributes").order_by("pk")
        return {
            "name": self.name,
            "connector": self.connector,
            "config": self.config,
            "types": [each.definition() for each in types],
            "profiles": [each.definition() for each in self.profiles.order_by("pk")],
        }

    def store(self, document: Mapping[str, Any]) -> None:
        """Save what a checked document says; raise ValidationError if it cannot be."""
        self.name, self.connector = document["name"], document["connector"]
        self.config = self._clean_config(document["config"])
        self.refuse_taken_name()
        self.full_clean(exclude=["created_at"])
        self.save()
        self._add_limits()
        wanted = [
            {_COLUMNS.get(name, name): each[name] for name in ObjectType.STORED} for each in document["types"]
        ]
        types = store_children(
            self.types.all(),
            wanted,
            key="name",
            owner={"system": self},
            refuse_removal=ObjectType.why_kept,
        )
        for row, each in zip(types, document["types"], strict=True):
            row.store_attributes(each["attributes"])
        store_children(self.profiles.all(), document["profiles"], key="name", owner={"system": self})

    def begin(self, now: datetime) -> None:
        self.created_at = now

    def _add_limits(self) -> None:
        """Add the limits by which runs of this system, and synchronisations, follow one another."""
        for resource in (self.resource, METAVERSE):
            note = "One run at a time: do not raise this limit."
            Limit.objects.get_or_create(key=f"resource:{resource}", defaults={"size": 1, "note": note})

    def _clean_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        if self.connector not in connectors:
            known = ", ".join(sorted(connectors))
            raise ValidationError(
                {"connector": f"Unknown connector “{self.connector}”. Known connectors: {known}."}
            )
        try:
            return connectors[self.connector].clean(dict(config))
        except ConfigError as error:
            raise ValidationError(
                {f"config.{name}": sentence(why) for name, why in error.errors.items()}
            ) from None

    def clear_now(self, *, initiator: Initiator, now: datetime, key: str | None = None) -> UUID:
        """Queue the job that forgets all accounts of this system; return the job's key."""
        return self._enqueue("clear_system", f"Clear {self}", initiator, now, key)

    def delete_now(self, *, initiator: Initiator, now: datetime, key: str | None = None) -> UUID:
        """Queue the job that deletes this system with its accounts and rules; return the job's key."""
        return self._enqueue("delete_system", f"Delete {self}", initiator, now, key)

    def _enqueue(
        self, step_type: str, name: str, initiator: Initiator, now: datetime, key: str | None
    ) -> UUID:
        request: dict[str, Any] = {"name": name, "step_type": step_type, "config": {"system": self.name}}
        request |= {} if key is None else {"idempotency_key": key}
        [job] = WorkerTask.objects.enqueue([request], initiator=initiator, now=now)
        return job

    def connect(self) -> Connector:
        return connectors[self.connector](self.config)

    def clear(self) -> bool:
        """Begin to forget the accounts; return False if the system is being deleted."""
        open_ones = ConnectedSystem.objects.filter(pk=self.pk).exclude(status=self.Status.DELETING)
        cleared = {"watermark": None, "imported_at": None, "status": self.Status.REBUILDING}
        return bool(open_ones.update(**cleared))

    @property
    def is_reimported(self) -> bool:
        """Return whether the system was imported completely after it was cleared."""
        return self.status == self.Status.REBUILDING and self.imported_at is not None

    def count_as_active(self) -> None:
        """Let a synchronisation count the system as active while it ends the rebuilding; store nothing."""
        self.status = self.Status.ACTIVE

    def end_rebuilding(self) -> None:
        """Make the system active after the full synchronisation that follows a full import."""
        rebuilt = ConnectedSystem.objects.filter(pk=self.pk, status=self.Status.REBUILDING)
        rebuilt.update(status=self.Status.ACTIVE)

    def begin_deletion(self) -> None:
        """Begin to remove the accounts. If that fails, a full import is needed, because some may be gone."""
        self.status, self.watermark, self.imported_at = self.Status.DELETING, None, None
        self.save(update_fields=["status", "watermark", "imported_at"])

    def give_up_deletion(self) -> None:
        """After a deletion that failed, store again that the system is active, or to be rebuilt."""
        is_cleared = self.status == self.Status.REBUILDING
        before = self.Status.REBUILDING if is_cleared else self.Status.ACTIVE
        ConnectedSystem.objects.filter(pk=self.pk).update(status=before)

    def shapes(self) -> dict[str, TypeShape]:
        """Return the selected types of this system with their selected attributes, by name."""
        types = self.types.filter(is_selected=True).prefetch_related("attributes")
        return {each.name: each.shape for each in types}


class ObjectType(models.Model):
    """A type of objects in a connected system, such as a person or a group."""

    system = models.ForeignKey(ConnectedSystem, models.CASCADE, related_name="types")
    name = models.CharField(max_length=100)
    external_id = models.CharField(
        max_length=100, help_text="The attribute that identifies an object for its whole life."
    )
    secondary_id = models.CharField(
        max_length=100,
        blank=True,
        help_text="The attribute that locates an object, such as its distinguished name. It may change.",
    )
    is_selected = models.BooleanField(default=True, help_text="Whether objects of this type are imported.")

    STORED = ("name", "external_id", "secondary_id", "selected")

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint("system", Lower("name"), name="object_type_once")]

    def __str__(self) -> str:
        return f"{self.system}: {self.name}"

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "external_id": self.external_id,
            "secondary_id": self.secondary_id,
            "selected": self.is_selected,
            "attributes": [each.definition() for each in self.attributes.all()],
        }

    def store_attributes(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        for role in ("external_id", "secondary_id"):
            name = getattr(self, role)
            if name and name not in [each["name"] for each in wanted]:
                raise ValidationError({role: f"“{name}” is not one of the attributes of {self.name}."})
        rows = [{_COLUMNS.get(name, name): each[name] for name in each} for each in wanted]
        store_children(self.attributes.all(), rows, key="name", owner={"type": self})

    def why_kept(self) -> str:
        """Return why the type cannot be removed; an empty string if it can."""
        if not self.accounts.exists():
            return ""
        return f"JIM knows objects of the type {self.name}. Clear the system before you remove this type."

    @property
    def shape(self) -> TypeShape:
        selected = [each for each in self.attributes.all() if each.is_selected and not each.is_credential]
        return TypeShape(
            self.name,
            {each.name: AttributeShape(each.name, Kind(each.kind), each.is_multi) for each in selected},
            self.external_id,
            self.secondary_id,
        )


class Attribute(models.Model):
    """An attribute of a type of objects."""

    class Writable(models.TextChoices):
        YES = "yes"
        CREATE = "create", "Only when the object is created"
        NO = "no"

    type = models.ForeignKey(ObjectType, models.CASCADE, related_name="attributes")
    name = models.CharField(max_length=100)
    kind = models.CharField(
        max_length=10, choices=[(kind.value, kind.value) for kind in Kind], default=Kind.TEXT.value
    )
    is_multi = models.BooleanField("multi-valued", default=False)
    writable = models.CharField(max_length=6, choices=Writable.choices, default=Writable.YES)
    match = models.CharField(
        max_length=6,
        choices=[(match.value, match.value) for match in Match],
        default=Match.EXACT.value,
        help_text="How an imported value is compared with the exported one, to confirm the export.",
    )
    is_selected = models.BooleanField(default=True, help_text="Whether the attribute is imported.")
    is_keyed = models.BooleanField(default=False, editable=False)
    is_credential = models.BooleanField(
        default=False, help_text="Credentials are exported, but never imported."
    )

    class Meta:
        default_permissions = ()
        ordering = ["id"]
        constraints = [models.UniqueConstraint("type", Lower("name"), name="attribute_once")]

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "multi": self.is_multi,
            "writable": self.writable,
            "match": self.match,
            "selected": self.is_selected,
            "credential": self.is_credential,
        }


# The columns whose names differ from those in documents.
_COLUMNS = {"multi": "is_multi", "selected": "is_selected", "credential": "is_credential"}
