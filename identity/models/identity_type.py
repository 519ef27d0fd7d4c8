"""The types of identities and their attributes, and when identities are deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.db import models, transaction
from django.db.models.functions import Lower

from identity.shape import AttributeShape
from identity.values import Kind
from operations.initiator import Initiator
from schedules.models import Refused

from .defined import Defined, DefinedQuerySet, store_children
from .system import ConnectedSystem


class IdentityType(Defined):
    """A type of identities, such as person or group, with its deletion rule."""

    class Deletion(models.TextChoices):
        MANUAL = "manual", "Only by hand"
        LAST_CONNECTOR = "last_connector", "When no account is joined any longer"
        AUTHORITATIVE = "authoritative", "When authoritative systems no longer have an account"

    class Sources(models.TextChoices):
        ANY = "any", "Any of the authoritative systems"
        ALL = "all", "All of the authoritative systems"

    noun = "identity type"

    display = models.CharField(
        max_length=100, blank=True, help_text="The attribute by which identities are shown."
    )
    deletion = models.CharField(max_length=14, choices=Deletion.choices, default=Deletion.MANUAL)
    sources = models.ManyToManyField(
        ConnectedSystem, blank=True, related_name="+", help_text="The authoritative systems."
    )
    sources_mode = models.CharField(max_length=3, choices=Sources.choices, default=Sources.ALL)
    grace_days = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(36_500)])

    objects = DefinedQuerySet["IdentityType"].as_manager()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(Lower("name"), name="identity_type_once")]

    def definition(self) -> dict[str, Any]:
        """Return the document that defines this type."""
        return {
            "name": self.name,
            "display": self.display,
            "deletion": self.deletion,
            "sources": sorted(system.name for system in self.sources.all()),
            "sources_mode": self.sources_mode,
            "grace_days": self.grace_days,
            "attributes": [each.definition() for each in self.attributes.all()],
        }

    def store(self, document: Mapping[str, Any]) -> None:
        """Save what a checked document says; raise ValidationError if it cannot be."""
        for name in ("name", "display", "deletion", "sources_mode", "grace_days"):
            setattr(self, name, document[name])
        if self.display and self.display not in [each["name"] for each in document["attributes"]]:
            raise ValidationError({"display": f"“{self.display}” is not one of the attributes."})
        self.refuse_taken_name()
        self.full_clean()
        self.save()
        self.sources.set(self._sources(document["sources"]))
        rows = [
            {"name": each["name"], "kind": each["kind"], "is_multi": each["multi"]}
            for each in document["attributes"]
        ]
        store_children(self.attributes.all(), rows, key="name", owner={"type": self})

    def _sources(self, names: Sequence[object]) -> list[ConnectedSystem]:
        found = [(name, ConnectedSystem.objects.named(str(name))) for name in names]
        if unknown := [str(name) for name, system in found if system is None]:
            raise ValidationError({"sources": f"Unknown connected system: {', '.join(unknown)}."})
        return [system for _, system in found if system is not None]

    def remove(self, *, initiator: Initiator, now: datetime) -> None:
        """Delete the type; raise Refused while there are identities of it."""
        with transaction.atomic():
            if self._locked().identities.exists():
                raise Refused(
                    f"There are identities of the type “{self}”, so it cannot be deleted. Delete them first."
                )
            super().remove(initiator=initiator, now=now)

    @property
    def shapes(self) -> dict[str, AttributeShape]:
        return {each.name: each.shape for each in self.attributes.all()}


class IdentityAttribute(models.Model):
    """An attribute of a type of identities."""

    type = models.ForeignKey(IdentityType, models.CASCADE, related_name="attributes")
    name = models.CharField(max_length=100)
    kind = models.CharField(
        max_length=10, choices=[(kind.value, kind.value) for kind in Kind], default=Kind.TEXT.value
    )
    is_multi = models.BooleanField("multi-valued", default=False)
    is_keyed = models.BooleanField(default=False, editable=False)

    class Meta:
        default_permissions = ()
        ordering = ["id"]
        constraints = [models.UniqueConstraint("type", Lower("name"), name="identity_attribute_once")]

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    def definition(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, "multi": self.is_multi}

    @property
    def shape(self) -> AttributeShape:
        return AttributeShape(self.name, Kind(self.kind), self.is_multi)
