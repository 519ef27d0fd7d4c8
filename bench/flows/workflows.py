"""The workflow that is measured. Its consumer reserves every event and makes no mutation."""

from __future__ import annotations

from bench.jobs import marks
from workflows import Consumer, Prepared, Workflow
from workflows.contexts import PrepareContext


class Listen(Consumer):
    subscribe = ["calls"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        if not marks.at(0):
            marks.mark(0)
        return Prepared(ctx.peek("calls"))


class Switchboard(Workflow):
    slug = "switchboard"
    title = "Switchboard"
    topics = {"calls": "Calls"}
    consumers = [Listen]
