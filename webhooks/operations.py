"""The operations on webhooks and deliveries that the pages and the admin offer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.template.loader import render_to_string
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.views.decorators.debug import sensitive_variables

from activities import vocabulary
from operations.initiator import Initiator
from operations.operation import Declined, Done, OnceForm, Operation, offer
from schedules.models import Refused
from schedules.operations import Removal
from schedules.vault import VaultError
from webhooks.forms import NoteForm, RotateForm
from webhooks.models import Delivery, Endpoint
from webhooks.models.endpoint import OLD_SECRET_HOURS

CHANGE = "webhooks.change_endpoint"


class Test(Operation[Endpoint]):
    name, label, permission, form = "test", "Send a test", CHANGE, OnceForm
    question = "Send the event “endpoint.test” to this webhook now? The event is signed like any other."

    def applies(self, endpoint: Endpoint) -> bool:
        return endpoint.is_enabled

    def perform(
        self, endpoint: Endpoint, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            delivery = endpoint.test(initiator=initiator, now=now, key=answers["key"])
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"A test event is being sent to “{endpoint}”.", delivery.get_absolute_url())


class Rotate(Operation[Endpoint]):
    name, label, permission, form = "rotate", "Rotate the secret", CHANGE, RotateForm
    question = (
        f"A new secret will replace the current one. For {OLD_SECRET_HOURS} hours, deliveries will be signed "
        "with both secrets, so that the receiver has time to switch. Rotate the secret?"
    )

    @method_decorator(sensitive_variables())
    def perform(
        self, endpoint: Endpoint, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            secret = endpoint.rotate(initiator=initiator, now=now, secret=answers["secret"])
        except (Refused, VaultError) as refused:
            raise Declined(str(refused)) from refused
        shown = "" if answers["secret"] else revealed(endpoint, secret, is_rotated=True)
        return Done(f"“{endpoint}” has a new secret.", reveal=shown)


class Enable(Operation[Endpoint]):
    name, label, permission = "enable", "Enable", CHANGE
    question = (
        "New events will be sent again. Events that happened while the webhook was disabled will not be "
        "sent. Enable the webhook?"
    )

    def applies(self, endpoint: Endpoint) -> bool:
        return not endpoint.is_enabled

    def perform(
        self, endpoint: Endpoint, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not endpoint.enable(initiator=initiator, now=now):
            raise Declined(f"“{endpoint}” is already enabled.")
        return Done(f"“{endpoint}” was enabled.")


class Disable(Operation[Endpoint]):
    name, label, permission, form = "disable", "Disable", CHANGE, NoteForm
    question = (
        "No more events will be sent to this webhook, and its pending deliveries will fail. Disable the "
        "webhook?"
    )

    def applies(self, endpoint: Endpoint) -> bool:
        return endpoint.is_enabled

    def perform(
        self, endpoint: Endpoint, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        if not endpoint.disable(initiator=initiator, now=now, note=answers["note"]):
            raise Declined(f"“{endpoint}” is already disabled.")
        return Done(f"“{endpoint}” was disabled.")


class Delete(Removal):
    permission, list_name = "webhooks.delete_endpoint", "web:webhooks"
    question = (
        "The webhook and its secret will be deleted permanently. The record of its deliveries is kept. "
        "Delete the webhook?"
    )


class Redeliver(Operation[Delivery]):
    name, label, permission = "redeliver", "Redeliver", "webhooks.change_delivery"
    question = "Send the event again, with the same id and the same content?"

    def applies(self, delivery: Delivery) -> bool:
        return delivery.status != Delivery.Status.PENDING and delivery.endpoint.is_enabled

    def perform(
        self, delivery: Delivery, *, answers: dict[str, Any], initiator: Initiator, now: datetime
    ) -> Done:
        try:
            delivery.redeliver(initiator=initiator, now=now)
        except Refused as refused:
            raise Declined(str(refused)) from refused
        return Done(f"The delivery “{delivery}” is being sent again.")


@sensitive_variables()
def revealed(endpoint: Endpoint, secret: str, *, is_rotated: bool = False) -> SafeString:
    context = {"endpoint": endpoint, "secret": secret, "is_rotated": is_rotated, "hours": OLD_SECRET_HOURS}
    return render_to_string("admin/webhooks/endpoint/_secret.html", context)


def trouble(endpoint: Endpoint, now: datetime) -> str:
    """Return why deliveries cannot be signed on this host, or an empty string."""
    try:
        endpoint.signing(now)
    except VaultError as error:
        return str(error)
    return ""


offer(Endpoint, Test(), Rotate(), Enable(), Disable(), Delete())
offer(Delivery, Redeliver())
vocabulary.add(
    *("enable", "disable", "rotate", "test", "redeliver"), targets=lambda: ("endpoint", "delivery")
)
