"""Workflows of the made-up installation: one that is idle, one at work, one stuck, one paused, one gone.

Their runs are written as a worker writes them, phase after phase, at times in the past.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from execution.models import Worker, WorkerTask
from execution.models.attempt import ClaimedTask, Finish
from execution.queue.claim import claim
from execution.queue.request import ClaimRequest
from execution.steps.outcome import Outcome
from operations.initiator import Initiator
from workflows import Consumer, PermissionRequired, Prepared, Producer, Transient, Workflow
from workflows.definition import Definitions
from workflows.deployment import deploy
from workflows.errors import Failure
from workflows.failures import Phase, Status, Stop, Tries
from workflows.models import Event, Handler, Run
from workflows.models import Workflow as Row
from workflows.models.commit import Commit
from workflows.models.event import Publication
from workflows.words import summary

# (message id, payload)
Events = Sequence[tuple[str, Any]]
POOL = "workflows"
GRACE, BOB = Initiator("user", "", "grace"), Initiator("user", "", "bob")


class _Producer(Producer):
    every = "5m"

    def produce(self, ctx: Any) -> None:
        """These are only looked at."""


class _Consumer(Consumer):
    def prepare(self, ctx: Any) -> None:
        """These are only looked at."""


def _producer(name: str, *publishes: str, **fields: Any) -> type[Producer]:
    return type(name, (_Producer,), {"publishes": list(publishes), "version": "2026.11.2", **fields})


def _consumer(name: str, *topics: str, **fields: Any) -> type[Consumer]:
    return type(name, (_Consumer,), {"subscribe": list(topics), "version": "2026.11.2", **fields})


def _workflow(slug: str, title: str, about: str, **fields: Any) -> type[Workflow]:
    return type(
        slug, (Workflow,), {"slug": slug, "title": title, "description": about, "pool": POOL, **fields}
    )


INVOICES = _workflow(
    "invoices",
    "Invoices from mail",
    "Finds invoices in the mailbox, books each of them, and asks before it pays.",
    topics={"mail": "New mail", "invoices": "Invoices to book", "payments": "Booked, to be paid"},
    producers=[_producer("PollMailbox", "mail", title="Poll the mailbox")],
    consumers=[
        _consumer("FindInvoices", "mail", title="Find invoices", publishes=["invoices"]),
        _consumer("BookInvoice", "invoices", title="Book an invoice", publishes=["payments"]),
        _consumer("Pay", "payments", title="Pay it"),
    ],
)
ORDERS = _workflow(
    "orders",
    "Orders to the warehouse",
    "Each order is checked, packed and announced to the customer.",
    topics={"orders": "New orders", "parcels": "Packed"},
    producers=[
        _producer("Shop", "orders", title="Ask the shop", every="1m"),
        _producer("Partners", "orders", title="Ask the partners", every="", cron="0 * * * *"),
    ],
    consumers=[
        _consumer("Pack", "orders", publishes=["parcels", "digest"]),
        _consumer("Announce", "parcels", title="Announce the parcel"),
    ],
)
DIGEST = _workflow(
    "digest",
    "Daily digest",
    "Collects what happened and mails it at nine in the morning.",
    topics={"digest": "For the digest"},
    consumers=[_consumer("SendDigest", "digest", title="Send the digest")],
)
BACKUPS = _workflow(
    "attachments",
    "Attachments to the archive",
    "",
    topics={"attachments": "Attachments"},
    producers=[_producer("FindAttachments", "attachments", title="Find attachments", every="1h")],
    consumers=[_consumer("Archive", "attachments")],
)
SURVEY = _workflow(
    "survey", "Customer survey", "", producers=[_producer("AskAll", title="Ask everybody", every="1d")]
)
ALL = (INVOICES, ORDERS, DIGEST, BACKUPS, SURVEY)


def create(*, now: datetime) -> None:
    """What starts by itself after each commit starts once at the end."""
    with transaction.atomic():
        deploy(Definitions.of(ALL), initiator=GRACE, now=now - timedelta(days=9))
        player = Player(Worker.objects.register(id=uuid.uuid4(), pools=[POOL], seats=4, now=now))
        _invoices(player, now)
        _digest(player, now)
        _orders(player, now)
        _attachments(now)
        deploy(Definitions.of(ALL[:-1]), initiator=GRACE, now=now - timedelta(days=1))
        player.leave(now)


def _invoices(player: Player, now: datetime) -> None:
    """Stuck at the last one, after it was tried twice."""
    for hours in (30, 20, 9):
        at = now - timedelta(hours=hours)
        mails = [_mail(hours, number) for number in range(3)]
        player.produce("invoices", "PollMailbox", mails, at)
        booked = [(f"INV-{hours}{number}", {"total": 90 + number}) for number in range(2)]
        player.consume("invoices", "FindInvoices", "mail", at, {"invoices": booked})
        for number, (name, _) in enumerate(booked):
            later = at + timedelta(seconds=4 + number)
            player.consume("invoices", "BookInvoice", "invoices", later, {"payments": [(name, {})]}, most=1)
        player.consume("invoices", "Pay", "payments", at + timedelta(seconds=9), {})
    at = now - timedelta(minutes=50)
    player.produce("invoices", "PollMailbox", [_mail(1, number) for number in range(4)], at)
    found: Events = [
        ("INV-2041", {"from": "Northwind", "total": 18_400, "currency": "EUR"}),
        ("INV-2042", {}),
    ]
    player.consume("invoices", "FindInvoices", "mail", at, {"invoices": found}, most=3)
    player.consume("invoices", "BookInvoice", "invoices", at, {"payments": [found[0]]}, most=1)
    run = player.begin("invoices", "Pay", at)
    stop = Stop(Status.PAUSED_TRANSIENT, at, Tries(transient=1))
    player.stop(run, stop, Transient("The bank does not answer"), at)
    run = player.follow(run, at + timedelta(seconds=10))
    player.prepare(
        run, "payments", at + timedelta(seconds=11), {"account": "DE02 1203 0000", "total": 18_400}
    )
    above = PermissionRequired("Paying 18,400 EUR to Northwind is above the limit of 10,000 EUR")
    stop = Stop(Status.PAUSED_APPROVAL, None, Tries(transient=1))
    player.stop(run, stop, above, at + timedelta(seconds=12))


def _mail(batch: int, number: int) -> tuple[str, Any]:
    return f"<{batch}.{number}@mail.example>", {"subject": f"Invoice {batch}{number}", "attachments": 1}


def _orders(player: Player, now: datetime) -> None:
    """More comes than is packed; one is being packed now."""
    for minutes in (240, 180, 120, 60, 20):
        at = now - timedelta(minutes=minutes)
        orders = [(f"order-{minutes}-{number}", {"lines": number + 1}) for number in range(60)]
        player.produce("orders", "Shop", orders, at)
        done: dict[str, Events] = {
            "parcels": [(f"parcel-{minutes}", {})],
            "digest": [(f"packed-{minutes}", {"orders": 6})],
        }
        player.consume("orders", "Pack", "orders", at + timedelta(seconds=5), done, most=6)
        player.consume("orders", "Announce", "parcels", at + timedelta(seconds=30), {})
    at = now - timedelta(seconds=20)
    run = player.begin("orders", "Pack", at)
    player.prepare(run, "orders", at + timedelta(seconds=1), {"shelf": "B-12"}, most=6)
    run.reach_mutating(now=at + timedelta(seconds=2))
    producers = Handler.objects.producers().filter(workflow__slug="orders")
    producers.update(next_run_at=now + timedelta(minutes=31))
    producers.filter(name="Shop").update(
        next_run_at=now + timedelta(seconds=40), state={"cursor": "order-20-59", "seen": 300}
    )


def _digest(player: Player, now: datetime) -> None:
    at = now - timedelta(hours=1)
    player.consume("digest", "SendDigest", "digest", at, {}, most=0)
    Handler.objects.filter(name="SendDigest").update(wake_at=now + timedelta(hours=6))


def _attachments(now: datetime) -> None:
    row = Row.objects.get(slug="attachments")
    row.pause("The archive moves to another building.", initiator=BOB, now=now - timedelta(hours=5))


class Player:
    """Somebody who performs runs by hand."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def produce(self, slug: str, name: str, events: Events, at: datetime) -> None:
        run = self.begin(slug, name, at)
        handler = Handler.objects.get(workflow__slug=slug, name=name)
        self._commit(
            run, {handler.publishes[0]: events}, at + timedelta(seconds=2), state={"seen": len(events)}
        )

    def consume(
        self,
        slug: str,
        name: str,
        topic: str,
        at: datetime,
        published: dict[str, Events],
        *,
        most: int = 100,
    ) -> None:
        run = self.begin(slug, name, at)
        self.prepare(run, topic, at, {"folder": "2026"}, most=most)
        if not run.is_empty:
            run.reach_mutating(now=at)
            run.reach_mutated({"ok": True}, now=at)
        run.reach(Phase.EMITTING, now=at)
        self._commit(run, published, at + timedelta(seconds=1))

    def begin(self, slug: str, name: str, at: datetime) -> Run:
        run = Run.objects.begin(Handler.objects.get(workflow__slug=slug, name=name), now=at)
        run.start(at)
        return run

    def follow(self, run: Run, at: datetime) -> Run:
        following = run.follow(now=at)
        following.start(at)
        return following

    def prepare(self, run: Run, topic: str, at: datetime, data: Any, *, most: int = 100) -> None:
        events = Event.objects.pending().filter(topic__slug=topic).select_related("topic").order_by("seq")
        run.reach_prepared(Prepared([event.as_pending() for event in events[:most]], data), now=at)

    def stop(self, run: Run, stop: Stop, why: Failure, at: datetime) -> None:
        run.stop(stop, why, now=at)
        self._finish(at, status="failed_with_error", error=str(why))

    def leave(self, now: datetime) -> None:
        """What runs at the end goes on running."""
        self._claimed(now)

    def _commit(self, run: Run, published: dict[str, Events], at: datetime, state: Any = None) -> None:
        events = [Publication(slug, *each) for slug, found in published.items() for each in found]
        run.commit(Commit(state, events, summary(run, events)), now=at)
        self._finish(at)

    def _finish(self, at: datetime, **outcome: Any) -> None:
        ended = Outcome(**{"status": "complete", "executed_at": at, "finished_at": at, **outcome})
        WorkerTask.objects.finish(
            [Finish(task, ended) for task in self._claimed(at)], worker_id=self.worker.pk, now=at
        )

    def _claimed(self, at: datetime) -> list[ClaimedTask]:
        return claim(ClaimRequest(self.worker.pk, [POOL], at, {"thread": 9}))


def examples() -> dict[str, Any]:
    stuck = Run.objects.stuck().get(workflow__slug="invoices")
    return {
        "workflow": "invoices",
        "workflow-row": stuck.workflow_id,
        "run": stuck.pk,
        "topic": "orders",
        "event": Event.objects.filter(topic__slug="payments").latest("pk").pk,
    }
