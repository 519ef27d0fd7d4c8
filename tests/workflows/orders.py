"""Orders become parcels, unless their shipment meets what a test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from tests.base import NOW
from tests.workflows.base import deployed, publish, work
from workflows import Consumer, Mutation, Prepared, Producer, Transient
from workflows import Workflow as Definition
from workflows.contexts import MutateContext, NextContext, PrepareContext, ProduceContext
from workflows.models import Run, Workflow

# What the next shipments raise, in this order.
meets: list[Exception] = []


class Fetch(Producer):
    """Finds nothing; tests publish what they need."""

    every = "5m"
    publishes = ["orders"]

    def produce(self, ctx: ProduceContext) -> Any:
        return {"looked": (ctx.state or {"looked": 0})["looked"] + 1}


class Ship(Consumer):
    subscribe = ["orders"]
    publishes = ["parcels"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        first = ctx.peek("orders")[:1]
        return Prepared(reserve=first, data=[each.payload for each in first])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(_ship, prepared.data)

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        if mutation.outcome == "applied":
            ctx.publish("parcels", prepared.reserve[0].message_id)


def _ship(orders: Any) -> Any:
    if meets:
        raise meets.pop(0)
    return {"shipped": orders}


class Orders(Definition):
    slug = "orders"
    title = "Orders"
    description = "Ships what was ordered."
    topics = {"orders": "Orders", "parcels": "Parcels"}
    producers = [Fetch]
    consumers = [Ship]


@contextmanager
def orders(*, now: datetime = NOW) -> Iterator[Workflow]:
    """Deployed and idle."""
    meets.clear()
    with deployed(Orders, now=now) as workflow:
        work(now=now)
        yield workflow


def stuck(error: Exception, *, message_id: str = "o1", now: datetime = NOW) -> Run:
    """The run whose shipment met this."""
    meets.append(error)
    publish("orders", message_id, payload={"item": message_id}, now=now)
    work(now=now)
    return Run.objects.open().get()


def backing_off(*, now: datetime = NOW) -> Run:
    return stuck(Transient("the carrier is closed"), now=now)
