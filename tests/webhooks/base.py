"""What tests of webhooks need: endpoints, and somebody who sends to them."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from typing import Any

from standardwebhooks import Webhook

from execution.loops.companions import ThreadContext
from tests.base import NOW, SOMEBODY
from tests.waiting import wait_until
from webhooks.events import KINDS
from webhooks.models import ClaimedDelivery, Delivery, Endpoint
from webhooks.sender import Sender
from webhooks.tries import TryResult

SECRET = "whsec_" + "Y2FuYXJ5LWJpcmQtaW4tdGhlLW1pbmUtNDI="
_numbers = itertools.count(1)


def make_endpoint(*kinds: str, now: datetime = NOW, **fields: Any) -> Endpoint:
    """One that is told of all events, unless it says which; signs with SECRET."""
    given = {
        "name": f"Endpoint {next(_numbers)}",
        "url": "https://hooks.example/jim",
        "kinds": list(kinds or KINDS),
        "secret": SECRET,
    }
    endpoint, _ = Endpoint.objects.define(**(given | fields), initiator=SOMEBODY, now=now)
    return endpoint


def make_delivery(endpoint: Endpoint, *, now: datetime = NOW) -> Delivery:
    return endpoint.test(initiator=SOMEBODY, now=now)


def told(endpoint: Endpoint | None = None) -> list[str]:
    """The kinds of what was written down, in order; not what anybody asked for himself."""
    rows = Delivery.objects.exclude(kind="endpoint.test").order_by("pk")
    rows = rows.filter(endpoint=endpoint) if endpoint else rows
    return list(rows.values_list("kind", flat=True))


def contents(kind: str) -> list[dict[str, Any]]:
    """The data of each delivery of this kind."""
    bodies = Delivery.objects.filter(kind=kind).order_by("pk").values_list("body", flat=True)
    return [json.loads(body)["data"] for body in bodies]


def claim(endpoint: Endpoint, *, now: datetime = NOW, limit: int = 10) -> list[ClaimedDelivery]:
    return Delivery.objects.claim(endpoint.pk, limit=limit, now=now)


def tried(status: int | None = 200, *, now: datetime = NOW, **fields: Any) -> TryResult:
    return TryResult(at=now, status=status, **fields)


def send(*, seconds: float = 3600, **options: Any) -> None:
    """What is due, once, by a sender of its own; returns when the answers are recorded."""
    sender = Sender(ThreadContext(), seconds=seconds, **options)
    try:
        sender.look()
        wait_until(lambda: len(sender.answers) == sender.busy.total())
        sender._record()
    finally:
        sender.close()


def verify(request: dict[str, Any], secret: str = SECRET) -> Any:
    """As the receiver does it, with somebody else's library."""
    return Webhook(secret).verify(request["body"], request["headers"])
