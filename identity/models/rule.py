"""Sync rules: how accounts become identities, and identities become accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower

from .defined import Defined, DefinedQuerySet, sentence, store_children
from .identity_type import IdentityType
from .system import ConnectedSystem, ObjectType


class SyncRule(Defined):
    """One rule between a type of accounts and a type of identities, in one direction.

    After an edit, accounts and identities follow at the next full synchronisation.
    """

    class Direction(models.TextChoices):
        IN = "in", "Inbound: from accounts to identities"
        OUT = "out", "Outbound: from identities to accounts"

    class OutOfScope(models.TextChoices):
        DISCONNECT = "disconnect", "Disconnect the account from the identity"
        KEEP = "keep", "Keep the account joined, and its values as they are"

    class Deprovision(models.TextChoices):
        DISCONNECT = "disconnect", "Leave the account as it is, and disconnect it"
        DISABLE = "disable", "Set the values that disable the account"
        DELETE = "delete", "Delete the account"

    noun = "rule"

    direction = models.CharField(max_length=3, choices=Direction.choices)
    object_type = models.ForeignKey(ObjectType, models.CASCADE, related_name="rules")
    identity_type = models.ForeignKey(IdentityType, models.CASCADE, related_name="rules")
    is_enabled = models.BooleanField(default=True)
    position = models.PositiveIntegerField(default=0, help_text="Rules apply in this order.")
    scope = models.JSONField(default=dict, blank=True)
    joins = models.JSONField(
        default=list,
        blank=True,
        help_text='Joins are tried in order; each is a list of conditions such as {"account": "id", '
        '"identity": "employee_id"} that must all hold.',
    )
    creates = models.BooleanField(
        default=True,
        help_text="Inbound: project an identity if none matches. Outbound: provision an account.",
    )
    out_of_scope = models.CharField(max_length=10, choices=OutOfScope.choices, default=OutOfScope.DISCONNECT)
    deprovision = models.CharField(max_length=10, choices=Deprovision.choices, default=Deprovision.DISCONNECT)
    disable_values = models.JSONField(
        default=dict, blank=True, help_text="The values that disable an account, by attribute."
    )
    enforces = models.BooleanField(
        default=True, help_text="Outbound: also correct values that were changed in the system itself."
    )
    recalls = models.BooleanField(
        default=True, help_text="Inbound: clear the values of an account that is disconnected."
    )

    objects = DefinedQuerySet["SyncRule"].as_manager()

    # Entries of the document that are stored as they are, under these names.
    STORED = {
        "name": "name",
        "direction": "direction",
        "enabled": "is_enabled",
        "position": "position",
        "scope": "scope",
        "joins": "joins",
        "creates": "creates",
        "out_of_scope": "out_of_scope",
        "deprovision": "deprovision",
        "disable_values": "disable_values",
        "enforces": "enforces",
        "recalls": "recalls",
    }

    class Meta:
        default_permissions = ("view",)
        ordering = ["position", "id"]
        constraints = [models.UniqueConstraint(Lower("name"), name="sync_rule_once")]

    @property
    def system(self) -> ConnectedSystem:
        return self.object_type.system

    def definition(self) -> dict[str, Any]:
        """Return the document that defines this rule."""
        return {name: getattr(self, column) for name, column in self.STORED.items()} | {
            "system": self.system.name,
            "object_type": self.object_type.name,
            "identity_type": self.identity_type.name,
            "flows": [each.definition() for each in self.flows.all()],
        }

    def fill(self, document: Mapping[str, Any]) -> list[Flow]:
        """Take over what a checked document says, without saving; return the flows.

        Raise ValidationError if it names a system or type that does not exist.
        """
        for name, column in self.STORED.items():
            setattr(self, column, document[name])
        system = ConnectedSystem.objects.named(document["system"])
        if system is None:
            raise ValidationError({"system": f"Unknown connected system “{document['system']}”."})
        kind = system.types.filter(name__iexact=document["object_type"]).first()
        if kind is None:
            raise ValidationError({"object_type": f"“{system}” has no type “{document['object_type']}”."})
        identities = IdentityType.objects.named(document["identity_type"])
        if identities is None:
            raise ValidationError({"identity_type": f"Unknown identity type “{document['identity_type']}”."})
        self.object_type, self.identity_type = kind, identities
        rows = [dict(each) for each in document["flows"]]
        for row in rows:
            if row["priority"] is None:
                row["priority"] = self._last_priority(row["target"])
        known = dict(self.flows.values_list("target", "pk")) if self.pk else {}
        return [Flow(pk=known.get(row["target"]), rule=self, **row) for row in rows]

    def check_usable(self, flows: Sequence[Flow]) -> None:
        """Raise ValidationError if the rule cannot be used together with the others."""
        from identity.rulebook import Rulebook, RuleError

        for place, flow in enumerate(flows):
            if bool(flow.source) == bool(flow.expression):
                raise ValidationError({f"flows.{place}": "Needs either a source or an expression."})
        try:
            Rulebook.load(without=self.pk).add(self, flows)
        except RuleError as error:
            raise ValidationError({error.path: sentence(error.reason)}) from None

    def _last_priority(self, target: str) -> int:
        """Return a priority after those of all other flows to the same attribute."""
        others = Flow.objects.filter(rule__identity_type=self.identity_type, target=target)
        others = others.exclude(rule=self.pk) if self.pk else others
        last = others.aggregate(last=models.Max("priority"))["last"]
        return 100 if last is None else last + 100

    def store(self, document: Mapping[str, Any]) -> None:
        flows = self.fill(document)
        self.refuse_taken_name()
        self.check_usable(flows)
        self.full_clean()
        self.save()
        names = ("target", "source", "expression", "priority", "null_is_value", "when", "merges")
        rows = [{name: getattr(flow, name) for name in names} for flow in flows]
        store_children(self.flows.all(), rows, key="target", owner={"rule": self})


class Flow(models.Model):
    """How one attribute gets its value: from an attribute of the other side, or from an expression."""

    class When(models.TextChoices):
        ALWAYS = "always"
        CREATE = "create", "Only when the target is created"

    rule = models.ForeignKey(SyncRule, models.CASCADE, related_name="flows")
    target = models.CharField(max_length=100)
    source = models.CharField(max_length=100, blank=True)
    expression = models.TextField(blank=True)
    priority = models.PositiveIntegerField(
        help_text="Of the flows to the same target, the lowest number wins."
    )
    null_is_value = models.BooleanField(
        default=False, help_text="Whether an empty value wins over the values of later flows."
    )
    when = models.CharField(max_length=6, choices=When.choices, default=When.ALWAYS)
    merges = models.BooleanField(
        default=False, help_text="Multi-valued targets: add the values to those of other flows that merge."
    )

    class Meta:
        default_permissions = ()
        ordering = ["priority", "id"]
        constraints = [models.UniqueConstraint(fields=["rule", "target"], name="flow_once")]

    def __str__(self) -> str:
        return f"{self.rule}: {self.target}"

    def definition(self) -> dict[str, Any]:
        names = ("target", "source", "expression", "priority", "null_is_value", "when", "merges")
        return {name: getattr(self, name) for name in names}
