"""A workflow from its deployment to its idle state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.base import NOW, seconds
from tests.workflows.base import deployed, events, publish, runs, work
from workflows import Consumer, Mutation, Prepared, Producer, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext, ProduceContext
from workflows.models import Run

pytestmark = pytest.mark.django_db
written: list[Any] = []


class Poll(Producer):
    every = "5m"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        count = (ctx.state or {}).get("count", 0) + 1
        ctx.publish("mail", f"m{count}", {"number": count})
        return {"count": count}


class Sort(Consumer):
    subscribe = ["mail"]
    publishes = ["rows"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        first = ctx.peek("mail")[:1]
        return Prepared(reserve=first, data=[each.payload for each in first])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(written.append, prepared.data)

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        if mutation.outcome == "applied":
            ctx.publish("rows", prepared.reserve[0].message_id)


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail", "rows": "Rows"}
    producers = [Poll]
    consumers = [Sort]


def test_everything_runs_on_deployment_and_a_consumer_until_it_reserves_nothing() -> None:
    written.clear()
    with deployed(Inbox):
        assert work() == ["Sort", "Poll", "Sort", "Sort"]
        assert written == [[{"number": 1}]]
        assert events("mail") == {"m1": "consumed"}
        assert events("rows") == {"m1": "pending"}


def test_events_wake_consumers_and_time_wakes_producers() -> None:
    with deployed(Inbox):
        work()
        publish("mail", "x", "y")
        assert work() == ["Sort", "Sort", "Sort"]
        assert work(now=NOW + seconds(299)) == []
        assert work(now=NOW + seconds(300)) == ["Poll", "Sort", "Sort"]
        assert {status for _, _, status in runs()} == {"committed"}


def test_each_run_says_what_it_did() -> None:
    with deployed(Inbox):
        work()
        assert list(Run.objects.order_by("pk").values_list("summary", flat=True)) == [
            "Found nothing to do",
            "Published 1 event to mail",
            "Consumed 1 event → published 1 event to rows",
            "Found nothing to do",
        ]
