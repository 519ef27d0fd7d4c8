from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandParser
from django.db import IntegrityError
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables

from jimsite.arguments import at_most, called
from jimsite.form_options import FormOptions
from jimsite.terminal import on_clock, state
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused
from text.numbers import whole_number
from webhooks.forms import EndpointForm, RotateForm
from webhooks.models import Delivery, Endpoint

NONE_YET = "“webhook add” creates one"
WEBHOOK = "WEBHOOK"
NAMES = {"kinds": "--event", "schedules": "--schedule"}
NEW = FormOptions(EndpointForm, positional={"name": WEBHOOK, "url": "URL"}, names=NAMES)
EDIT = FormOptions(EndpointForm, names=NAMES, without=frozenset({"secret"}), is_edit=True)
ROTATE = FormOptions(RotateForm)


def endpoint_called(text: str) -> Endpoint:
    rows, number = Endpoint.objects.present(), whole_number(text.strip())
    if number is not None and (found := rows.filter(pk=number).first()):
        return found
    endpoint: Endpoint = called(rows, text, by="name", kind="webhook", none_yet=NONE_YET)
    return endpoint


def delivery_called(text: str) -> Delivery:
    number = whole_number(text.strip())
    rows = Delivery.objects.select_related("endpoint")
    found = None if number is None else rows.filter(pk=number).first()
    if found is None:
        raise Refused(
            f"Delivery “{text}” was not found. Use “webhook deliveries” to list deliveries and their numbers."
        )
    return found


WEBHOOKS = Target(WEBHOOK, "name or id of the webhook", endpoint_called)
DELIVERIES = Target("DELIVERY", "number of the delivery", delivery_called)


class Command(VerbsCommand):
    help = "Manage webhooks: URLs that JIM notifies of events such as completed or failed executions."

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List webhooks with their URLs, events and state.", self.list_all)
        yield Verb(
            "add",
            "Add a webhook and print its signing secret to standard output. The secret is never shown again.",
            self.add,
            NEW.ask,
        )
        yield Verb(
            "edit", "Change a webhook. Settings that are not given stay unchanged.", self.edit, _ask_edit
        )
        yield Verb(
            "rotate",
            "Replace the signing secret and print the new one to standard output. For one day, deliveries "
            "are signed with both secrets.",
            self.rotate,
            _ask_rotate,
        )
        yield from self.operations_of(Endpoint, WEBHOOKS, but=["rotate"])
        yield Verb("deliveries", "List deliveries, newest first.", self.deliveries, _ask_list)
        yield from self.operations_of(Delivery, DELIVERIES)

    def list_all(self, options: dict[str, Any]) -> None:
        rows = list(Endpoint.objects.present().order_by("name"))
        self.tell({"webhooks": [_facts(row) for row in rows]}, lambda: self._show(rows))

    def _show(self, rows: Sequence[Endpoint]) -> None:
        if not rows:
            self.say(f"No webhooks yet: {NONE_YET}.")
            return
        self.columns(
            {
                "State": [
                    state(row.status, of="complete" if row.is_enabled else "cancelled") for row in rows
                ],
                "Webhook": [row.name for row in rows],
                "URL": [row.url for row in rows],
                "Failed in a row": [str(row.failed_in_a_row or "") for row in rows],
                "Note": [row.status_note for row in rows],
                "Events": [", ".join(row.kinds) for row in rows],
            },
            spare=("Events",),
        )

    @method_decorator(sensitive_variables())
    def add(self, options: dict[str, Any]) -> None:
        given = NEW.read(EndpointForm, options).cleaned_data
        fields = {name: given[name] for name in Endpoint.EDITABLE}
        with _named_once():
            endpoint, secret = Endpoint.objects.define(
                **fields, secret=given["secret"], initiator=self.by, now=self.now
            )
        self._reveal(endpoint, secret, "was added")

    def edit(self, options: dict[str, Any]) -> None:
        endpoint = endpoint_called(options["webhook"])
        known = endpoint_called(str(endpoint.pk))
        form = EDIT.read(lambda given: EndpointForm(given, instance=known), options)
        changes = {name: form.cleaned_data[name] for name in Endpoint.EDITABLE}
        with _named_once():
            endpoint.edit(changes=changes, initiator=self.by, now=self.now)
        self.tell(_facts(endpoint), lambda: self.say(f"“{endpoint}” was saved."))

    @method_decorator(sensitive_variables())
    def rotate(self, options: dict[str, Any]) -> None:
        endpoint = endpoint_called(options["webhook"])
        given = ROTATE.read(RotateForm, options).cleaned_data
        secret = endpoint.rotate(initiator=self.by, now=self.now, secret=given["secret"])
        self._reveal(endpoint, secret, "has a new secret")

    @method_decorator(sensitive_variables())
    def _reveal(self, endpoint: Endpoint, secret: str, what: str) -> None:
        self.tell(_facts(endpoint) | {"secret": secret}, lambda: self._show_secret(endpoint, secret, what))

    @method_decorator(sensitive_variables())
    def _show_secret(self, endpoint: Endpoint, secret: str, what: str) -> None:
        self.stderr.write(f"“{endpoint}” {what}. The signing secret is shown only once:", str)
        self.stdout.write(f"{secret}\n")

    def deliveries(self, options: dict[str, Any]) -> None:
        rows = Delivery.objects.select_related("endpoint").defer("body", "log").order_by("-pk")
        if options["webhook"]:
            rows = rows.filter(endpoint=endpoint_called(options["webhook"]))
        if options["status"]:
            rows = rows.filter(status=options["status"])
        found = list(rows[: options["limit"]])
        self.tell({"deliveries": [_sent(row) for row in found]}, lambda: self._show_deliveries(found))

    def _show_deliveries(self, rows: Sequence[Delivery]) -> None:
        if not rows:
            self.say("No deliveries match these filters.")
            return
        self.columns(
            {
                "Delivery": [str(row.pk) for row in rows],
                "State": [
                    state(row.status, of="complete" if row.status == "delivered" else "") for row in rows
                ],
                "Webhook": [row.endpoint.name for row in rows],
                "Event": [row.kind for row in rows],
                "Since (UTC)": [on_clock(row.created_at) for row in rows],
                "Attempts": [str(row.tries) for row in rows],
                "Note": [row.note for row in rows],
            }
        )


@contextmanager
def _named_once() -> Iterator[None]:
    """Raise Refused if the database reports that the name is already taken."""
    try:
        yield
    except IntegrityError:
        raise Refused("A webhook with this name already exists. Choose another name.") from None


def _ask_edit(parser: CommandParser) -> None:
    parser.add_argument("webhook", metavar=WEBHOOK, help=WEBHOOKS.help)
    EDIT.ask(parser)


def _ask_rotate(parser: CommandParser) -> None:
    parser.add_argument("webhook", metavar=WEBHOOK, help=WEBHOOKS.help)
    ROTATE.ask(parser)


def _ask_list(parser: CommandParser) -> None:
    parser.add_argument(
        "webhook", nargs="?", default="", metavar=WEBHOOK, help="only deliveries of this webhook"
    )
    parser.add_argument("--status", choices=Delivery.Status.values, help="only deliveries in this state")
    at_most(parser, 20)


def _facts(row: Endpoint) -> dict[str, Any]:
    return {
        "id": row.pk,
        "name": row.name,
        "url": row.url,
        "description": row.description,
        "events": row.kinds,
        "schedules": row.schedules,
        "failures": row.failures,
        "among": row.among,
        "status": row.status,
        "status_note": row.status_note,
        "failed_in_a_row": row.failed_in_a_row,
        "succeeded_at": row.succeeded_at,
    }


def _sent(row: Delivery) -> dict[str, Any]:
    return {
        "id": row.pk,
        "webhook": row.endpoint.name,
        "event": row.kind,
        "status": row.status,
        "tries": row.tries,
        "created_at": row.created_at,
        "next_try_at": row.next_try_at,
        "ended_at": row.ended_at,
        "note": row.note,
    }
