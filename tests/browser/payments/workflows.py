from __future__ import annotations

from workflows import Consumer, Mutation, PermissionRequired, Prepared, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext


class Pay(Consumer):
    """Asks before it pays, and says who allowed it."""

    subscribe = ["bills"]
    publishes = ["paid"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek("bills")[:1])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        [bill] = prepared.reserve
        if not ctx.approved:
            raise PermissionRequired(f"paying {bill.payload['total']} EUR is above the limit")
        ctx.apply(lambda: {"allowed": ctx.note})

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        for bill in prepared.reserve:
            ctx.publish("paid", bill.message_id, mutation.result)


class Payments(Workflow):
    slug = "payments"
    title = "Payments"
    topics = {"bills": "Bills", "paid": "Paid"}
    consumers = [Pay]
