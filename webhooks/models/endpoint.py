"""Endpoints: the webhooks that users define."""

from __future__ import annotations

import json
import logging
import unicodedata
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q, Subquery
from django.db.models.functions import Lower
from django.urls import reverse
from django.views.decorators.debug import sensitive_variables

from activities.models import Activity
from database.statements import fetch
from execution.outgoing.addresses import url_complaint
from operations.initiator import Initiator
from schedules import vault
from schedules.models import Refused, Schedule
from schedules.models.secret import keys_to_write_with
from schedules.models.step import check_plain_text
from schedules.vault import Undecryptable
from text.clean import clean_lines
from webhooks import events
from webhooks.signing import new_secret, secret_error
from webhooks.tries import TryResult, is_hopeless

from .delivery import Delivery, body_of

OLD_SECRET_HOURS = 24
MOST_AMONG = 50
MOST_SCHEDULES = 1_000
BY = Initiator.system("webhooks")
LISTENING = "webhooks_endpoint WHERE status = 'enabled'"
logger = logging.getLogger(__name__)


class Listener(NamedTuple):
    """An enabled endpoint and the events that it receives."""

    id: int
    kinds: frozenset[str]
    schedules: frozenset[int]
    failures: int
    among: int

    def wants(self, kind: str, schedule_id: int | None) -> bool:
        return kind in self.kinds and (not self.schedules or schedule_id in self.schedules)


class EndpointQuerySet(models.QuerySet["Endpoint"]):
    def enabled(self) -> EndpointQuerySet:
        return self.filter(status=Endpoint.Status.ENABLED)

    def present(self) -> EndpointQuerySet:
        return self.exclude(status=Endpoint.Status.REMOVED)

    def failing(self) -> EndpointQuerySet:
        """Keep the enabled endpoints whose last delivery failed, and those disabled automatically."""
        is_failing = Q(status=Endpoint.Status.ENABLED, failed_in_a_row__gt=0)
        return self.filter(is_failing | Q(status=Endpoint.Status.DISABLED, is_disabled_by_itself=True))

    def listening(self) -> list[Listener]:
        """Return a listener for each enabled endpoint.

        The query is plain SQL to be fast, because every transaction that ends work makes it.
        """
        rows = fetch(f"SELECT id, kinds, schedules, failures, among FROM {LISTENING}", [])
        return [listener for row in rows if (listener := _listener_of(*row))]

    def with_next_try(self) -> list[tuple[Endpoint, datetime | None]]:
        """Return a list of (endpoint, time when its next delivery attempt is due, or None)."""
        pending = Delivery.objects.pending().filter(endpoint=OuterRef("pk")).order_by("next_try_at")
        rows: Any = self.annotate(next_try_at=Subquery(pending.values("next_try_at")[:1]))
        rows = rows.defer("kinds", "schedules")
        return [(endpoint, endpoint.next_try_at) for endpoint in rows.order_by("pk")]

    @sensitive_variables()
    def define(
        self, *, initiator: Initiator, now: datetime, secret: str = "", **fields: Any
    ) -> tuple[Endpoint, str]:
        """Create an endpoint and return it with its signing secret, which is not shown again."""
        endpoint = Endpoint(created_at=now, succeeded_at=now, **fields)
        endpoint.full_clean(exclude=["token"])
        secret = _valid_secret(secret) or new_secret()
        with transaction.atomic():
            endpoint.token = keys_to_write_with().encrypt(secret)
            endpoint.save(force_insert=True)
            details = endpoint.definition()
            Activity.objects.record("create", endpoint, initiator=initiator, now=now, details=details)
        return endpoint, secret

    def lock(self) -> EndpointQuerySet:
        return self.select_for_update(of=("self",), no_key=True)

    def prune(self, *, limit: int) -> int:
        """Delete removed endpoints that have no deliveries left."""
        deliveries = Delivery.objects.filter(endpoint=OuterRef("pk"))
        gone = self.filter(~Exists(deliveries), status=Endpoint.Status.REMOVED).values_list("pk", flat=True)
        return self.filter(pk__in=list(gone[:limit])).delete()[0]


class Endpoint(models.Model):
    """A URL that receives events."""

    class Status(models.TextChoices):
        ENABLED = "enabled"
        DISABLED = "disabled"
        REMOVED = "removed"

    EDITABLE = ("name", "url", "description", "kinds", "schedules", "failures", "among")

    name = models.CharField(max_length=100)
    url = models.TextField("URL")
    description = models.TextField(blank=True, validators=[MaxLengthValidator(1_000)])
    kinds = models.JSONField("events", default=list, blank=True)
    schedules = models.JSONField(
        default=list,
        blank=True,
        help_text="The ids of the schedules whose events are sent. If empty, all events are sent.",
    )
    failures = models.PositiveSmallIntegerField(
        default=3, validators=[MinValueValidator(1), MaxValueValidator(MOST_AMONG)]
    )
    among = models.PositiveSmallIntegerField(
        "among the last", default=3, validators=[MinValueValidator(1), MaxValueValidator(MOST_AMONG)]
    )

    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ENABLED, editable=False)
    status_note = models.CharField(max_length=500, blank=True, editable=False)
    is_disabled_by_itself = models.BooleanField(default=False, editable=False)
    token = models.TextField(editable=False)
    old_token = models.TextField(blank=True, editable=False)
    old_token_until = models.DateTimeField(null=True, editable=False)
    failed_in_a_row = models.PositiveIntegerField(default=0, editable=False)
    succeeded_at = models.DateTimeField(
        editable=False,
        help_text="When a delivery last succeeded, or when the webhook was last enabled, if that is later.",
    )
    created_at = models.DateTimeField(editable=False)

    objects = EndpointQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                Lower("name"),
                condition=~Q(status="removed"),
                name="endpoint_name_once",
                violation_error_message="A webhook with this name already exists. Choose another name.",
            ),
        ]
        indexes = [models.Index(fields=["id"], name="endpoint_enabled", condition=Q(status="enabled"))]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("web:endpoint", args=[self.pk])

    @property
    def is_enabled(self) -> bool:
        return self.status == self.Status.ENABLED

    def definition(self) -> dict[str, Any]:
        """Return the definition for the history, without the URL, which may contain a password."""
        return {name: getattr(self, name) for name in self.EDITABLE if name != "url"}

    def edit(self, *, changes: Mapping[str, Any], initiator: Initiator, now: datetime) -> None:
        with transaction.atomic():
            self._lock_and_refresh()
            before, url = self.definition(), self.url
            for name in self.EDITABLE:
                setattr(self, name, changes.get(name, getattr(self, name)))
            self.full_clean(exclude=["token"])
            if (self.definition(), self.url) == (before, url):
                return
            self.save(update_fields=self.EDITABLE)
            details = {"before": before, "after": self.definition()}
            message = "" if self.url == url else "new URL"
            Activity.objects.record(
                "edit", self, initiator=initiator, now=now, message=message, details=details
            )

    @sensitive_variables()
    def rotate(self, *, initiator: Initiator, now: datetime, secret: str = "") -> str:
        """Set a new secret and return it. For a day, deliveries are signed with the old secret as well."""
        secret = _valid_secret(secret) or new_secret()
        with transaction.atomic():
            keys = keys_to_write_with()
            self._lock_and_refresh()
            self.old_token, self.token = self.token, keys.encrypt(secret)
            self.old_token_until = now + timedelta(hours=OLD_SECRET_HOURS)
            self.save(update_fields=["token", "old_token", "old_token_until"])
            Activity.objects.record("rotate", self, initiator=initiator, now=now)
        return secret

    def enable(self, *, initiator: Initiator, now: datetime) -> bool:
        """Enable the endpoint and reset its failures. Return False if it was already enabled."""
        fields = {"status_note": "", "is_disabled_by_itself": False, "failed_in_a_row": 0}
        with transaction.atomic():
            disabled = Endpoint.objects.filter(pk=self.pk, status=self.Status.DISABLED)
            if not disabled.update(status=self.Status.ENABLED, succeeded_at=now, **fields):
                return False
            Activity.objects.record("enable", self, initiator=initiator, now=now)
        return True

    def disable(
        self, *, initiator: Initiator, now: datetime, note: str = "", by_itself: bool = False
    ) -> bool:
        """Disable the endpoint and fail its pending deliveries. Return False if it was not enabled."""
        with transaction.atomic():
            enabled = Endpoint.objects.enabled().filter(pk=self.pk)
            if not enabled.update(
                status=self.Status.DISABLED, status_note=note[:500], is_disabled_by_itself=by_itself
            ):
                return False
            self.deliveries.give_up("The webhook was disabled.", now=now)
            Activity.objects.record("disable", self, initiator=initiator, now=now, message=note)
        return True

    def remove(self, *, initiator: Initiator, now: datetime) -> None:
        """Delete the endpoint and its secret. Its deliveries are kept for the retention time."""
        with transaction.atomic():
            self._lock_and_refresh()
            self.status, self.token, self.old_token = self.Status.REMOVED, "", ""
            self.save(update_fields=["status", "token", "old_token"])
            self.deliveries.give_up("The webhook was deleted.", now=now)
            Activity.objects.record("delete", self, initiator=initiator, now=now)

    def test(self, *, initiator: Initiator, now: datetime, key: str = "") -> Delivery:
        """Send a test event and return its delivery. For a `key` used before, return the earlier one."""
        delivery_key = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.pk}/{key}") if key else uuid.uuid4()
        with transaction.atomic():
            self._lock_and_refresh()
            if known := self.deliveries.filter(key=delivery_key).first():
                return known
            if not self.is_enabled:
                raise Refused(f"The webhook “{self}” is disabled. Enable it first.")
            data = {"endpoint": {"id": self.pk, "name": self.name}, "asked_by": initiator.name}
            new = (self.pk, events.TEST, body_of(events.TEST, now, data))
            (pk,) = Delivery.objects.add([new], now=now, key=delivery_key)
            Activity.objects.record("test", self, initiator=initiator, now=now)
        return Delivery.objects.get(pk=pk)

    @sensitive_variables()
    def signing(self, now: datetime) -> list[str]:
        """Return the valid secrets, newest first. Raise Undecryptable if this host cannot read the newest."""
        tokens = [self.token]
        if self.old_token and self.old_token_until is not None and now < self.old_token_until:
            tokens.append(self.old_token)
        keys = vault.current()
        values = [keys.decrypt(token) for token in tokens]
        if values[0] is None:
            raise Undecryptable([self.name], keys)
        return [value for value in values if value is not None]

    def learn(self, tried: TryResult, *, has_failed: bool, now: datetime) -> None:
        """Update the endpoint after an attempt. Disable it if its URL is gone or has failed for days."""
        mine = Endpoint.objects.enabled().filter(pk=self.pk)
        if tried.is_delivered:
            stale = Q(failed_in_a_row__gt=0) | Q(succeeded_at__lt=now - timedelta(minutes=1))
            mine.filter(stale).update(failed_in_a_row=0, succeeded_at=now)
        elif tried.is_gone:
            self.disable(initiator=BY, now=now, note="The receiver responded with 410 Gone.", by_itself=True)
        elif has_failed:
            mine.update(failed_in_a_row=models.F("failed_in_a_row") + 1)
            row = mine.first()
            if row is not None and row.is_hopeless(now):
                self.disable(initiator=BY, now=now, note=row._hopeless_note(now), by_itself=True)

    def is_hopeless(self, now: datetime) -> bool:
        return is_hopeless(failures=self.failed_in_a_row, succeeded_at=self.succeeded_at, now=now)

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")
        self.url, self.description = self.url.strip(), clean_lines(self.description.strip())
        complaint = url_complaint(self.url)
        wrong = {
            "url": f"The URL {complaint}." if complaint else "",
            "kinds": _kinds_error(self.kinds),
            "schedules": _schedules_error(self.schedules),
            "failures": f"Enter at most {self.among}: only the last {self.among} executions are checked."
            if (self.failures or 0) > (self.among or 0)
            else "",
        }
        if wrong := {name: text for name, text in wrong.items() if text}:
            raise ValidationError(wrong)

    def _lock_and_refresh(self) -> None:
        """Lock the endpoint and reload this object. Raise Refused if the endpoint was deleted."""
        fresh = Endpoint.objects.present().lock().filter(pk=self.pk).first()
        if fresh is None:
            raise Refused(f"The webhook “{self}” was deleted.")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _hopeless_note(self, now: datetime) -> str:
        days = (now - self.succeeded_at).days
        return f"The last {self.failed_in_a_row} deliveries failed, and none has succeeded for {days} days."


def _listener_of(pk: int, kinds: Any, schedules: Any, failures: int, among: int) -> Listener | None:
    """Return the listener of a row, or None if the row is damaged, so that the other listeners still work."""
    try:
        return Listener(pk, frozenset(_read(kinds)), frozenset(_read(schedules)), failures, among)
    except (TypeError, ValueError):
        logger.exception("endpoint %s cannot be read", pk)
        return None


def _read(stored: Any) -> Any:
    return json.loads(stored) if isinstance(stored, str) else stored


@sensitive_variables()
def _valid_secret(secret: str) -> str:
    if secret and (message := secret_error(secret)):
        raise ValidationError({"secret": message})
    return secret


def _kinds_error(kinds: Any) -> str:
    if not isinstance(kinds, list) or not kinds:
        return "Choose at least one event."
    unknown = [str(kind) for kind in kinds if kind not in events.KINDS]
    return f"“{unknown[0]}” is not a known event." if unknown else ""


def _schedules_error(ids: Any) -> str:
    if not isinstance(ids, list) or not all(type(pk) is int for pk in ids):
        return "Enter a list of schedule ids."
    if len(ids) > MOST_SCHEDULES:
        return f"Choose at most {MOST_SCHEDULES:,} schedules, or none to include all. You chose {len(ids):,}."
    missing = set(ids) - set(Schedule.objects.filter(pk__in=ids).values_list("pk", flat=True))
    return f"Schedule {min(missing)} does not exist." if missing else ""
