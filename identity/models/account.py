"""Accounts: JIM's copies of the objects in connected systems."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models
from django.db.models import Q

from database.statements import literal

from .identity import Identity
from .system import Attribute, ConnectedSystem, ObjectType


class AccountQuerySet(models.QuerySet["Account"]):
    def mark_absent(self, ids: Sequence[int]) -> int:
        """Mark present accounts as gone from their system; the next synchronisation disconnects them."""
        present = self.filter(pk__in=ids, status=Account.Status.PRESENT)
        return present.update(status=literal(Account.Status.OBSOLETE.value), is_dirty=True)


class Account(models.Model):
    """One object of a connected system, such as a user or a group, as it was last imported.

    `attrs` is what the system has; `wanted` is what the outbound rules say it should have.
    """

    class Status(models.TextChoices):
        PROVISIONING = "provisioning", "To be created, or created and not yet imported"
        PRESENT = "present"
        OBSOLETE = "obsolete", "No longer in the system"

    class Join(models.TextChoices):
        NONE = "", "Not joined"
        PROJECTED = "projected", "The identity was created from this account"
        JOINED = "joined", "Joined by a rule"
        PROVISIONED = "provisioned", "Created, or found, for the identity"

    system = models.ForeignKey(ConnectedSystem, models.CASCADE, related_name="accounts", db_index=False)
    type = models.ForeignKey(ObjectType, models.CASCADE, related_name="accounts", db_index=False)
    external_id = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001 (not yet known)
    secondary_id = models.CharField(max_length=1000, blank=True)
    attrs = models.JSONField(default=dict)
    hash = models.CharField(max_length=32, blank=True)
    wanted = models.JSONField(null=True, blank=True)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.PRESENT)
    identity = models.ForeignKey(
        Identity, models.SET_NULL, null=True, blank=True, related_name="accounts", db_index=False
    )
    join = models.CharField(max_length=11, choices=Join.choices, default=Join.NONE, blank=True)
    is_dirty = models.BooleanField(
        default=True, help_text="Whether the account has changed since it was last synchronised."
    )
    source = models.JSONField(
        null=True, blank=True, help_text="The run and the place in its input of the last change."
    )

    objects = AccountQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        constraints = [
            # A type belongs to one system. With the system in front, PostgreSQL sometimes reads all of its
            # accounts instead, if they were few when the table was last analysed.
            models.UniqueConstraint(fields=["type", "external_id"], name="account_once"),
            models.UniqueConstraint(
                fields=["identity", "type"],
                condition=Q(identity__isnull=False) & ~Q(status="obsolete"),
                name="account_of_identity_once",
            ),
        ]
        indexes = [
            models.Index(fields=["system", "id"], name="account_of_system"),
            models.Index(fields=["system", "id"], name="account_dirty", condition=Q(is_dirty=True)),
            models.Index(
                fields=["identity"], name="account_of_identity", condition=Q(identity__isnull=False)
            ),
            models.Index(
                fields=["type", "secondary_id"],
                name="account_secondary_id",
                condition=~Q(secondary_id=""),
            ),
        ]

    def __str__(self) -> str:
        return self.external_id or f"account {self.pk}"


class FormerAccount(models.Model):
    """What is remembered of a joined account when its system is cleared, until the system is rebuilt."""

    type = models.ForeignKey(ObjectType, models.CASCADE, related_name="+")
    identity = models.ForeignKey(Identity, models.CASCADE, related_name="+", db_index=False)
    join = models.CharField(max_length=11, choices=Account.Join.choices)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["identity", "type"], name="former_account_once")]

    def __str__(self) -> str:
        return f"{self.type} of {self.identity}"


class AccountKey(models.Model):
    """The value of an account's attribute by which it is joined, folded for the search."""

    account = models.ForeignKey(Account, models.CASCADE, related_name="keys")
    attribute = models.ForeignKey(Attribute, models.CASCADE, related_name="+", db_index=False)
    value = models.CharField(max_length=255)

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["attribute", "value"], name="account_key")]


class AccountLink(models.Model):
    """A reference from an account to another object of its system, which may not have been imported yet."""

    owner = models.ForeignKey(Account, models.CASCADE, related_name="links")
    attribute = models.ForeignKey(Attribute, models.CASCADE, related_name="+", db_index=False)
    raw = models.CharField(max_length=1000)
    target = models.ForeignKey(
        Account, models.SET_NULL, null=True, blank=True, related_name="referrers", db_index=False
    )

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["target"], name="account_link_target", condition=Q(target__isnull=False)),
            models.Index(
                fields=["attribute", "raw"], name="account_link_open", condition=Q(target__isnull=True)
            ),
        ]
