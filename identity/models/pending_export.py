from __future__ import annotations

from datetime import datetime

from django.db import models, transaction
from django.db.models import Q

from activities.models import Activity
from operations.initiator import Initiator

from .account import Account
from .system import ConnectedSystem


class PendingExportQuerySet(models.QuerySet["PendingExport"]):
    def presume_sent(self) -> int:
        """Take what was in flight when an export was killed for sent, so that an import can find out."""
        in_flight = self.filter(status=PendingExport.Status.IN_FLIGHT)
        return in_flight.update(status=PendingExport.Status.EXPORTED)

    def send_again(self) -> int:
        """Make changes that a system refused, or that wait for another try, due now; return their number."""
        stuck = self.filter(Q(status=PendingExport.Status.REFUSED) | Q(next_at__isnull=False))
        pending = {"status": PendingExport.Status.PENDING, "attempts": 0, "next_at": None}
        return stuck.update(error="", error_type="", **pending)

    def awaiting_confirmation(self) -> PendingExportQuerySet:
        """Return what was sent and not confirmed yet, even if more has been staged since."""
        status = PendingExport.Status
        return self.filter(Q(status=status.EXPORTED) | Q(status=status.PENDING) & ~Q(sent={}))


class PendingExport(models.Model):
    """What an account should get: what is wanted, less what the system has or was sent.

    `changes` maps attributes to their new values; None removes a value. `sent` is what an export has sent and
    no import has confirmed.
    """

    class Operation(models.TextChoices):
        CREATE = "create"
        UPDATE = "update"
        DELETE = "delete"

    class Status(models.TextChoices):
        PENDING = "pending"
        IN_FLIGHT = "in_flight", "Being sent"
        EXPORTED = "exported", "Sent, not yet confirmed by an import"
        UNCONFIRMED = "unconfirmed", "Sent, but an import did not find it; it will be sent again"
        REFUSED = "refused", "Refused by the system; it is sent again when it changes, or on request"

    SENDABLE = (Status.PENDING, Status.UNCONFIRMED)

    account = models.OneToOneField(Account, models.CASCADE, related_name="pending")
    system = models.ForeignKey(ConnectedSystem, models.CASCADE, related_name="pending", db_index=False)
    operation = models.CharField(max_length=6, choices=Operation.choices)
    changes = models.JSONField(default=dict)
    sent = models.JSONField(default=dict)
    status = models.CharField(max_length=11, choices=Status.choices, default=Status.PENDING)
    revision = models.PositiveIntegerField(default=1)
    attempts = models.PositiveIntegerField(
        default=0, help_text="How often it was sent without success since it last changed."
    )
    next_at = models.DateTimeField(null=True, blank=True, help_text="When to send it again.")
    error_type = models.CharField(max_length=32, blank=True)
    error = models.TextField(blank=True)
    activity_id = models.BigIntegerField(null=True, blank=True, help_text="The run that last sent it.")

    objects = PendingExportQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["system", "status", "id"], name="pending_export_of_system")]

    def __str__(self) -> str:
        return f"{self.operation} {self.account}"

    def retry(self, *, initiator: Initiator, now: datetime) -> bool:
        """Send the change again with the next export; return False if it is not stuck."""
        with transaction.atomic():
            if not PendingExport.objects.filter(pk=self.pk).send_again():
                return False
            Activity.objects.record("retry", self, initiator=initiator, now=now)
        return True
