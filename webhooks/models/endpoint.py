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
from webhooks.signing import new_secret, secret_complaint
from webhooks.tries import Tried, is_hopeless

from .delivery import Delivery, body_of

OLD_SECRET_HOURS = 24
MOST_AMONG = 50
MOST_SCHEDULES = 1_000
BY = Initiator.system("webhooks")
LISTENING = "webhooks_endpoint WHERE status = 'enabled'"
logger = logging.getLogger(__name__)


class Listener(NamedTuple):
    """What an endpoint wants to hear of, and nothing else of it."""

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
        """Whose last deliveries failed, and those that were disabled for it."""
        is_failing = Q(status=Endpoint.Status.ENABLED, failed_in_a_row__gt=0)
        return self.filter(is_failing | Q(status=Endpoint.Status.DISABLED, is_disabled_by_itself=True))

    def listening(self) -> list[Listener]:
        """Asked by every transaction that ends some work: as text, since writing it would take longer."""
        rows = fetch(f"SELECT id, kinds, schedules, failures, among FROM {LISTENING}", [])
        return [listener for row in rows if (listener := _listener(*row))]

    def with_next_try(self) -> list[tuple[Endpoint, datetime | None]]:
        """Each, and when the first of its deliveries is due; not what it wants to hear of."""
        pending = Delivery.objects.pending().filter(endpoint=OuterRef("pk")).order_by("next_try_at")
        rows: Any = self.annotate(next_try_at=Subquery(pending.values("next_try_at")[:1]))
        rows = rows.defer("kinds", "schedules")
        return [(endpoint, endpoint.next_try_at) for endpoint in rows.order_by("pk")]

    @sensitive_variables()
    def define(
        self, *, initiator: Initiator, now: datetime, secret: str = "", **fields: Any
    ) -> tuple[Endpoint, str]:
        """A new endpoint and the secret that it signs with, which nobody is told again."""
        endpoint = Endpoint(created_at=now, succeeded_at=now, **fields)
        endpoint.full_clean(exclude=["token"])
        secret = _checked(secret) or new_secret()
        with transaction.atomic():
            endpoint.token = keys_to_write_with().encrypt(secret)
            endpoint.save(force_insert=True)
            details = endpoint.definition()
            Activity.objects.record("create", endpoint, initiator=initiator, now=now, details=details)
        return endpoint, secret

    def lock(self) -> EndpointQuerySet:
        return self.select_for_update(of=("self",), no_key=True)

    def prune(self, *, limit: int) -> int:
        """Those that were removed, when the last record of what they were told is gone."""
        told = Delivery.objects.filter(endpoint=OuterRef("pk"))
        gone = self.filter(~Exists(told), status=Endpoint.Status.REMOVED).values_list("pk", flat=True)
        return self.filter(pk__in=list(gone[:limit])).delete()[0]


class Endpoint(models.Model):
    """Somebody's web address that is told of events."""

    class Status(models.TextChoices):
        ENABLED = "enabled"
        DISABLED = "disabled"
        REMOVED = "removed"

    EDITABLE = ("name", "url", "description", "kinds", "schedules", "failures", "among")

    name = models.CharField(max_length=100)
    url = models.TextField("URL")
    description = models.TextField(blank=True, validators=[MaxLengthValidator(1_000)])
    kinds = models.JSONField("events", default=list, blank=True)
    schedules = models.JSONField(default=list, blank=True, help_text="Ids; none: whatever the schedule.")
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
        editable=False, help_text="The last success; before the first one, when it was enabled."
    )
    created_at = models.DateTimeField(editable=False)

    objects = EndpointQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                Lower("name"),
                condition=~Q(status="removed"),
                name="endpoint_name_once",
                violation_error_message="There is an endpoint with this name already: choose another name.",
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
        """As the record of a change shows it. An address may hold a password of its own: it is left out."""
        return {name: getattr(self, name) for name in self.EDITABLE if name != "url"}

    def edit(self, *, changes: Mapping[str, Any], initiator: Initiator, now: datetime) -> None:
        with transaction.atomic():
            self._take()
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
        """A new secret; for a day, both of them sign."""
        secret = _checked(secret) or new_secret()
        with transaction.atomic():
            keys = keys_to_write_with()
            self._take()
            self.old_token, self.token = self.token, keys.encrypt(secret)
            self.old_token_until = now + timedelta(hours=OLD_SECRET_HOURS)
            self.save(update_fields=["token", "old_token", "old_token_until"])
            Activity.objects.record("rotate", self, initiator=initiator, now=now)
        return secret

    def enable(self, *, initiator: Initiator, now: datetime) -> bool:
        """Its failures so far are forgotten. False: it was enabled already."""
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
        """Nothing more is sent to it; what waits has failed. False: it was not enabled."""
        with transaction.atomic():
            enabled = Endpoint.objects.enabled().filter(pk=self.pk)
            if not enabled.update(
                status=self.Status.DISABLED, status_note=note[:500], is_disabled_by_itself=by_itself
            ):
                return False
            self.deliveries.give_up("The endpoint was disabled.", now=now)
            Activity.objects.record("disable", self, initiator=initiator, now=now, message=note)
        return True

    def remove(self, *, initiator: Initiator, now: datetime) -> None:
        """For good. What it was told stays on record as long as anything else does, its secret does not."""
        with transaction.atomic():
            self._take()
            self.status, self.token, self.old_token = self.Status.REMOVED, "", ""
            self.save(update_fields=["status", "token", "old_token"])
            self.deliveries.give_up("The endpoint was deleted.", now=now)
            Activity.objects.record("delete", self, initiator=initiator, now=now)

    def test(self, *, initiator: Initiator, now: datetime, key: str = "") -> Delivery:
        """Sends it something to see whether it arrives; the same key asks for the same test."""
        delivery_key = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.pk}/{key}") if key else uuid.uuid4()
        with transaction.atomic():
            self._take()
            if known := self.deliveries.filter(key=delivery_key).first():
                return known
            if not self.is_enabled:
                raise Refused(f"“{self}” is disabled: enable it first.")
            data = {"endpoint": {"id": self.pk, "name": self.name}, "asked_by": initiator.name}
            letter = (self.pk, events.TEST, body_of(events.TEST, now, data))
            (pk,) = Delivery.objects.add([letter], now=now, key=delivery_key)
            Activity.objects.record("test", self, initiator=initiator, now=now)
        return Delivery.objects.get(pk=pk)

    @sensitive_variables()
    def signing(self, now: datetime) -> list[str]:
        """The secrets that count now, the newest first; Undecryptable if no key of this host fits."""
        tokens = [self.token]
        if self.old_token and self.old_token_until is not None and now < self.old_token_until:
            tokens.append(self.old_token)
        keys = vault.current()
        values = [keys.decrypt(token) for token in tokens]
        if values[0] is None:
            raise Undecryptable([self.name], keys)
        return [value for value in values if value is not None]

    def learn(self, tried: Tried, *, has_failed: bool, now: datetime) -> None:
        """From how a delivery went: one that is gone, or has been failing for days, is disabled."""
        mine = Endpoint.objects.enabled().filter(pk=self.pk)
        if tried.is_delivered:
            stale = Q(failed_in_a_row__gt=0) | Q(succeeded_at__lt=now - timedelta(minutes=1))
            mine.filter(stale).update(failed_in_a_row=0, succeeded_at=now)
        elif tried.is_gone:
            self.disable(initiator=BY, now=now, note="It answered 410 Gone.", by_itself=True)
        elif has_failed:
            mine.update(failed_in_a_row=models.F("failed_in_a_row") + 1)
            row = mine.first()
            if row is not None and row.is_hopeless(now):
                self.disable(initiator=BY, now=now, note=row._hopeless_words(now), by_itself=True)

    def is_hopeless(self, now: datetime) -> bool:
        return is_hopeless(failures=self.failed_in_a_row, succeeded_at=self.succeeded_at, now=now)

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")
        self.url, self.description = self.url.strip(), clean_lines(self.description.strip())
        complaint = url_complaint(self.url)
        wrong = {
            "url": f"The URL {complaint}." if complaint else "",
            "kinds": _kinds_complaint(self.kinds),
            "schedules": _schedules_complaint(self.schedules),
            "failures": f"{self.failures} cannot be among the last {self.among} executions."
            if (self.failures or 0) > (self.among or 0)
            else "",
        }
        if wrong := {name: text for name, text in wrong.items() if text}:
            raise ValidationError(wrong)

    def _take(self) -> None:
        """Locks the row and reads it anew."""
        fresh = Endpoint.objects.present().lock().filter(pk=self.pk).first()
        if fresh is None:
            raise Refused(f"“{self}” was deleted meanwhile.")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _hopeless_words(self, now: datetime) -> str:
        days = (now - self.succeeded_at).days
        return f"Its last {self.failed_in_a_row} deliveries failed, and none arrived for {days} days."


def _listener(pk: int, kinds: Any, schedules: Any, failures: int, among: int) -> Listener | None:
    """None for a row that somebody damaged: it tells nobody anything, and stops nobody else."""
    try:
        return Listener(pk, frozenset(_read(kinds)), frozenset(_read(schedules)), failures, among)
    except (TypeError, ValueError):
        logger.exception("endpoint %s cannot be read", pk)
        return None


def _read(stored: Any) -> Any:
    return json.loads(stored) if isinstance(stored, str) else stored


@sensitive_variables()
def _checked(secret: str) -> str:
    if secret and (complaint := secret_complaint(secret)):
        raise ValidationError({"secret": complaint})
    return secret


def _kinds_complaint(kinds: Any) -> str:
    if not isinstance(kinds, list) or not kinds:
        return "Choose at least one event."
    unknown = [str(kind) for kind in kinds if kind not in events.KINDS]
    return f"There is no event “{unknown[0]}”." if unknown else ""


def _schedules_complaint(ids: Any) -> str:
    if not isinstance(ids, list) or not all(type(pk) is int for pk in ids):
        return "Schedules are given as a list of their ids."
    if len(ids) > MOST_SCHEDULES:
        return f"{len(ids):,} schedules are too many, at most {MOST_SCHEDULES:,}: choose none to hear of all."
    missing = set(ids) - set(Schedule.objects.filter(pk__in=ids).values_list("pk", flat=True))
    return f"There is no schedule {min(missing)}." if missing else ""
