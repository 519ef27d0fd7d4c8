"""Deliveries: events that are sent to endpoints."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import connection, models, transaction
from django.db.models import Q
from django.urls import reverse

from activities.models import Activity
from database.statements import fetch, insert_each, literal
from database.wake import wake
from operations.initiator import Initiator
from schedules.models import Refused
from text.clean import clean_json, clean_text
from webhooks.tries import MOST_TRIES, TryResult, next_try

if TYPE_CHECKING:
    from .endpoint import Endpoint

# Longer than a try can take. A sender that has not recorded the result by then is considered lost.
HOLD_SECONDS = 60
TRIES_KEPT = 20

# The endpoint id, kind and body of a delivery to add.
NewDelivery = tuple[int, str, str]


class ClaimedDelivery(NamedTuple):
    """A delivery that was claimed for one attempt.

    The result is recorded only if `tries` is still the same in the database: no later claim was made.
    """

    id: int
    key: uuid.UUID
    endpoint_id: int
    body: str
    tries: int
    tries_left: int
    log: list[dict[str, Any]]

    @property
    def webhook_id(self) -> str:
        return _webhook_id(self.key)


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    def pending(self) -> DeliveryQuerySet:
        return self.filter(status=literal(Delivery.Status.PENDING))

    def add(
        self, deliveries: Iterable[NewDelivery], *, now: datetime, key: uuid.UUID | None = None
    ) -> list[int]:
        """Add deliveries that are due now, wake the senders and return the ids of the deliveries.

        Pass `key` only with a single delivery.
        """
        rows: list[tuple[Any, ...]] = [(key or uuid.uuid4(), *delivery, []) for delivery in deliveries]
        same = {
            "status": Delivery.Status.PENDING,
            "tries": 0,
            "tries_left": MOST_TRIES,
            "created_at": now,
            "next_try_at": now,
            "note": "",
        }
        fields = ("key", "endpoint", "kind", "body", "log")
        added = insert_each(Delivery, fields, rows, same=same, returning="id")
        wake("jim_tasks")
        return [pk for (pk,) in added]

    def claim(self, endpoint_id: int, *, limit: int, now: datetime) -> list[ClaimedDelivery]:
        """Claim at most `limit` due deliveries of an endpoint, and return them.

        A claimed delivery is due again after HOLD_SECONDS, in case its sender dies.
        """
        at, hold = (
            connection.ops.adapt_datetimefield_value(time)
            for time in (now, now + timedelta(seconds=HOLD_SECONDS))
        )
        due = "endpoint_id = %s AND status = 'pending' AND tries_left > 0 AND next_try_at <= %s"
        first = f"SELECT id FROM webhooks_delivery WHERE {due} ORDER BY next_try_at, id LIMIT %s"
        among = f"id IN ({first})"
        if connection.vendor == "postgresql":
            among = f"id = ANY(ARRAY({first} FOR UPDATE SKIP LOCKED))"
        rows = fetch(
            "UPDATE webhooks_delivery SET tries = tries + 1, tries_left = tries_left - 1, next_try_at = %s "
            f"WHERE {among} AND {due} RETURNING id, key, endpoint_id, body, tries, tries_left, log",
            [hold, endpoint_id, at, limit, endpoint_id, at],
        )
        return [_claimed_delivery(row) for row in rows]

    def deliver(self, claimed: ClaimedDelivery, tried: TryResult, *, now: datetime) -> Delivery.Status | None:
        """Record the result of an attempt. Return the new status, or None if the claim is no longer valid."""
        at = None if tried.is_delivered else next_try(tried, left=claimed.tries_left, now=now)
        status = Delivery.Status.PENDING if at else Delivery.Status.FAILED
        if tried.is_delivered:
            status = Delivery.Status.DELIVERED
        mine = self.pending().filter(pk=claimed.id, tries=claimed.tries)
        log = [*claimed.log, tried.as_json()][-TRIES_KEPT:]
        ended_at = None if at else now
        moved = mine.update(status=status, next_try_at=at, ended_at=ended_at, log=log)
        return status if moved else None

    def give_up(self, why: str, *, now: datetime) -> int:
        return self.pending().update(
            status=Delivery.Status.FAILED, next_try_at=None, ended_at=now, note=why[:200]
        )

    def give_up_hopeless(self, *, now: datetime) -> int:
        """Fail due deliveries that cannot be sent: the endpoint is disabled, or no attempts are left."""
        due = self.filter(next_try_at__lte=now)
        unsendable = due.exclude(endpoint__status="enabled").give_up("The webhook is disabled.", now=now)
        unheard = due.filter(tries_left=0).give_up("The worker was lost during the last attempt.", now=now)
        return unsendable + unheard

    def prune(self, *, before: datetime, limit: int) -> int:
        old = self.filter(ended_at__lt=before).values_list("pk", flat=True)
        return self.filter(pk__in=list(old[:limit])).delete()[0]


class Delivery(models.Model):
    """One event that is sent to one endpoint."""

    class Status(models.TextChoices):
        PENDING = "pending"
        DELIVERED = "delivered"
        FAILED = "failed"

    key = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    endpoint = models.ForeignKey(
        "webhooks.Endpoint",
        models.CASCADE,
        related_name="deliveries",
        db_index=False,
        # A transaction that adds a delivery must not fail if the endpoint has been deleted.
        db_constraint=False,
    )
    kind = models.CharField("event", max_length=40)
    body = models.TextField()
    status = models.CharField(max_length=9, choices=Status.choices, default=Status.PENDING)
    tries = models.PositiveIntegerField(default=0)
    tries_left = models.PositiveSmallIntegerField(default=MOST_TRIES)
    next_try_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    note = models.CharField(
        max_length=200,
        blank=True,
        help_text="Why the delivery failed, if no attempt shows why, such as “The webhook is disabled.”",
    )
    log = models.JSONField(default=list, blank=True, help_text="The most recent attempts, oldest first.")

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "deliveries"
        # SQLite prefers the index created last, so those with conditions come last.
        indexes = [
            models.Index(fields=["endpoint", "-id"], name="delivery_of_endpoint"),
            models.Index(fields=["kind", "-id"], name="delivery_of_kind"),
            models.Index(
                fields=["endpoint", "next_try_at"], name="delivery_due", condition=Q(status="pending")
            ),
            models.Index(
                fields=["status", "-id"], name="delivery_undelivered", condition=~Q(status="delivered")
            ),
            models.Index(fields=["ended_at"], name="delivery_ended", condition=Q(ended_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} #{self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("web:delivery", args=[self.pk])

    @property
    def webhook_id(self) -> str:
        return _webhook_id(self.key)

    @cached_property
    def last_try(self) -> dict[str, Any]:
        return self.log[-1] if self.log else {}

    def redeliver(self, *, initiator: Initiator, now: datetime) -> None:
        """Send the delivery again with the same id and body, and with as many attempts as a new delivery."""
        with transaction.atomic():
            endpoint: Endpoint = self.endpoint
            if endpoint.status == endpoint.Status.REMOVED:
                raise Refused(f"The webhook “{endpoint}” was deleted.")
            if not endpoint.is_enabled:
                raise Refused(f"The webhook “{endpoint}” is disabled. Enable it first.")
            ended = Delivery.objects.filter(pk=self.pk).exclude(status=self.Status.PENDING)
            anew = {"tries_left": MOST_TRIES, "next_try_at": now, "ended_at": None, "note": ""}
            if not ended.update(status=self.Status.PENDING, **anew):
                raise Refused(f"The delivery “{self}” is already being sent.")
            Activity.objects.record("redeliver", self, initiator=initiator, now=now)
            wake("jim_tasks")


def _webhook_id(key: uuid.UUID) -> str:
    return f"msg_{key.hex}"


def body_of(kind: str, at: datetime, data: Mapping[str, Any]) -> str:
    content = {"type": kind, "timestamp": at.isoformat(), "data": clean_json(data)}
    return clean_text(json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str))


def _claimed_delivery(row: tuple[Any, ...]) -> ClaimedDelivery:
    pk, key, endpoint_id, body, tries, tries_left, log = row
    key = key if isinstance(key, uuid.UUID) else uuid.UUID(key)
    return ClaimedDelivery(
        pk, key, endpoint_id, body, tries, tries_left, json.loads(log) if isinstance(log, str) else log
    )
