"""The empty reservation problem: events are pending, and the consumer does not want them yet."""

from __future__ import annotations

from datetime import timedelta

import pytest

from execution.scheduler import is_due, next_due
from tests.base import NOW
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, runs, work
from workflows import Consumer, Mutation, Pending, Prepared, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext
from workflows.models import Handler, Run

pytestmark = pytest.mark.django_db
told: list[str] = []


class Waiting(Consumer):
    """Each of these waits for something else; none of them for ever."""

    subscribe = ["orders", "payments"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=self.ready(ctx))

    def ready(self, ctx: PrepareContext) -> list[Pending]:
        raise NotImplementedError

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        told.append("mutate")

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        told.append(f"next: {mutation.outcome}")


class Correlated(Waiting):
    def ready(self, ctx: PrepareContext) -> list[Pending]:
        paid = {each.message_id for each in ctx.peek("payments")}
        orders = [each for each in ctx.peek("orders") if each.message_id in paid]
        return orders + [each for each in ctx.peek("payments") if each.message_id in paid and orders]


class Windowed(Waiting):
    def ready(self, ctx: PrepareContext) -> list[Pending]:
        return [each for each in ctx.peek("orders") if ctx.now - each.created_at >= timedelta(hours=1)]


class Filtered(Waiting):
    def ready(self, ctx: PrepareContext) -> list[Pending]:
        return [each for each in ctx.peek("orders") if each.payload == "urgent"]


class Batched(Waiting):
    def ready(self, ctx: PrepareContext) -> list[Pending]:
        found = ctx.peek("orders")
        return found if len(found) >= 3 else []


def shop(consumer: type[Consumer]) -> type[Workflow]:
    body = {"title": "Shop", "topics": {"orders": "", "payments": ""}, "consumers": [consumer]}
    return type("Shop", (Workflow,), {"slug": "shop", **body})


WAITING = [Correlated, Windowed, Filtered, Batched]


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()


@pytest.mark.parametrize("consumer", WAITING, ids=lambda consumer: consumer.__name__)
def test_the_host_does_not_retry_at_once(consumer: type[Consumer]) -> None:
    with deployed(shop(consumer)):
        publish("orders", "o1")
        assert work() == [consumer.__name__]
        assert not is_due(minutes(24 * 60))
        assert next_due(NOW) is None
        assert work(now=minutes(24 * 60)) == []
        assert events("orders") == {"o1": "pending"}


@pytest.mark.parametrize(
    ("consumer", "topic", "message_ids", "payload"),
    [
        (Correlated, "payments", ["o1"], None),
        (Filtered, "orders", ["o2"], "urgent"),
        (Batched, "orders", ["o2", "o3"], None),
    ],
    ids=["Correlated", "Filtered", "Batched"],
)
def test_a_new_event_is_the_trigger(
    consumer: type[Consumer], topic: str, message_ids: list[str], payload: str | None
) -> None:
    with deployed(shop(consumer)):
        publish("orders", "o1")
        work()
        publish(topic, *message_ids, payload=payload)
        assert work() == [consumer.__name__] * 2
        assert events(topic)[message_ids[0]] == "consumed"


def test_mutate_is_left_out_and_next_runs_all_the_same() -> None:
    with deployed(shop(Batched)):
        publish("orders", "o1")
        work()
        assert told == ["next: none"]
        publish("orders", "o2", "o3")
        work()
        assert told == ["next: none", "mutate", "next: none", "next: none"]


def test_a_run_that_reserved_nothing_is_recorded_like_any_other() -> None:
    with deployed(shop(Batched)):
        work()
        assert runs() == [("Batched", "committed", "committed")]
        run = Run.objects.get()
        assert (run.prepare_result or {})["reserve"] == []
        assert (run.effect, run.mutation_result, run.summary) == ("", None, "Found nothing to do")
        assert Handler.objects.get().wake_at is None
