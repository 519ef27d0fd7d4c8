"""Workflows as the tests of pages need them: one that goes well, and one that gets stuck in every way."""

from __future__ import annotations

from typing import Any, ClassVar

from workflows import Consumer, Mutation, Prepared, Producer, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext, ProduceContext


class Poll(Producer):
    title = "Poll the mailbox"
    every = "5m"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        count = (ctx.state or {}).get("count", 0) + 1
        ctx.publish("mail", f"m{count}", {"number": count}, title=f"Mail {count}")
        return {"count": count}


class Sort(Consumer):
    subscribe = ["mail"]
    publishes = ["rows"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek("mail")[:1], data={"folder": "A"})

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(lambda: {"written": 1})

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        if mutation.outcome == "applied":
            ctx.publish("rows", prepared.reserve[0].message_id)


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    description = "Sorts mail."
    topics = {"mail": "New mail", "rows": "Rows"}
    producers = [Poll]
    consumers = [Sort]


class Pay(Consumer):
    """Raises what `failure` says, until somebody approves."""

    title = "Pay it"
    subscribe = ["bills"]
    failure: ClassVar[Exception | None] = None
    in_flight: ClassVar[bool] = False

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek("bills")[:1])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        if self.failure is not None and not ctx.approved and not self.in_flight:
            raise self.failure
        ctx.apply(self._pay)

    def _pay(self) -> dict[str, Any]:
        if self.failure is not None and self.in_flight:
            raise self.failure
        return {"paid": True}


class Bills(Workflow):
    slug = "bills"
    title = "Bills"
    topics = {"bills": "Bills"}
    consumers = [Pay]
