"""Identities: what JIM knows of one person or thing, derived from the joined accounts by the rules."""

from __future__ import annotations

from datetime import datetime

from django.db import models, transaction
from django.db.models import Q

from activities.models import Activity
from operations.initiator import Initiator
from text.clean import clean_text

from .identity_type import IdentityAttribute, IdentityType


class Identity(models.Model):
    """One person, group or other thing, as the accounts that are joined to it and the rules say.

    `lineage` says for each attribute where its value comes from: flow, rule and its revision, account, run.
    """

    class Origin(models.TextChoices):
        PROJECTED = "projected", "Created from an account"
        INTERNAL = "internal", "Created by hand"
        GENERATED = "generated", "Created as example data"

    uuid = models.UUIDField(unique=True)
    type = models.ForeignKey(IdentityType, models.PROTECT, related_name="identities", db_index=False)
    attrs = models.JSONField(default=dict)
    lineage = models.JSONField(default=dict)
    display = models.CharField(max_length=255, blank=True)
    origin = models.CharField(max_length=9, choices=Origin.choices, default=Origin.PROJECTED)
    delete_after = models.DateTimeField(null=True, blank=True)
    deletion = models.JSONField(
        null=True, blank=True, help_text="Why and by whom the identity was marked for deletion."
    )
    is_dirty = models.BooleanField(
        default=False, help_text="Whether the identity must be synchronised because of another object."
    )
    version = models.PositiveIntegerField(default=1)

    class Meta:
        verbose_name_plural = "identities"
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["type", "id"], name="identity_of_type"),
            models.Index(fields=["type", "display", "id"], name="identity_by_display"),
            models.Index(
                fields=["delete_after"], name="identity_due", condition=Q(delete_after__isnull=False)
            ),
            models.Index(fields=["id"], name="identity_dirty", condition=Q(is_dirty=True)),
        ]

    def __str__(self) -> str:
        return self.display or str(self.uuid)

    def delete_at(self, at: datetime, *, initiator: Initiator, now: datetime, note: str = "") -> None:
        """Mark the identity for deletion by hand; housekeeping deletes it and its accounts after `at`."""
        by = {"type": initiator.type, "id": initiator.id, "name": initiator.name}
        mark = {"deletion": "manual", "at": now.isoformat(), "by": by, "note": clean_text(note)[:1000]}
        with transaction.atomic():
            Identity.objects.filter(pk=self.pk).update(delete_after=at, deletion=mark)
            Activity.objects.record("mark", self, initiator=initiator, now=now, message=note)
        self.refresh_from_db()

    def keep(self, *, initiator: Initiator, now: datetime, note: str = "") -> bool:
        """Take the mark for deletion away; return False if there is none."""
        with transaction.atomic():
            marked = Identity.objects.filter(pk=self.pk, delete_after__isnull=False)
            if not marked.update(delete_after=None, deletion=None, is_dirty=True):
                return False
            Activity.objects.record("keep", self, initiator=initiator, now=now, message=note)
        self.refresh_from_db()
        return True


class IdentityKey(models.Model):
    """The value of an identity's attribute by which accounts are joined to it, folded for the search."""

    identity = models.ForeignKey(Identity, models.CASCADE, related_name="keys")
    attribute = models.ForeignKey(IdentityAttribute, models.CASCADE, related_name="+", db_index=False)
    value = models.CharField(max_length=255)

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["attribute", "value"], name="identity_key")]


class IdentityLink(models.Model):
    """A reference from an identity to another one, such as from a person to the manager."""

    owner = models.ForeignKey(Identity, models.CASCADE, related_name="links")
    target = models.ForeignKey(Identity, models.CASCADE, related_name="referrers")

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["owner", "target"], name="identity_link_once")]


class UniqueValue(models.Model):
    """A value that an identity has reserved, so that no other identity gets it, such as a user name.

    `scope` names the attribute: the values are unique within it, apart from upper and lower case.
    """

    scope = models.CharField(max_length=120)
    value = models.CharField(max_length=255)
    text = models.CharField(max_length=255, help_text="The value as it is written.")
    identity = models.ForeignKey(Identity, models.CASCADE, related_name="unique_values")

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["scope", "value"], name="unique_value_once"),
            models.UniqueConstraint(fields=["identity", "scope"], name="unique_value_of_identity"),
        ]
