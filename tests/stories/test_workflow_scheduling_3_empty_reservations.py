"""The empty reservation problem: events are pending, and the consumer does not want them yet."""

from __future__ import annotations

import pytest

from execution.loops.scheduler import is_due, next_due
from tests.base import NOW
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from workflows import Consumer, Mutation, Pending, Prepared, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext
from workflows.models import Run

pytestmark = pytest.mark.django_db
told: list[str] = []


class Waiting(Consumer):
    """Each of these waits for something else, as do those of pattern coverage; none of them for ever."""

    subscribe = ["orders"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=self.ready(ctx))

    def ready(self, ctx: PrepareContext) -> list[Pending]:
        raise NotImplementedError

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        told.append("mutate")

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        told.append(f"next: {mutation.outcome}")


class Filtered(Waiting):
    def ready(self, ctx: PrepareContext) -> list[Pending]:
        return [each for each in ctx.peek("orders") if each.payload == "urgent"]


class Batched(Waiting):
    def ready(self, ctx: PrepareContext) -> list[Pending]:
        found = ctx.peek("orders")
        return found if len(found) >= 3 else []


def shop(consumer: type[Consumer]) -> type[Workflow]:
    body = {"title": "Shop", "topics": {"orders": ""}, "consumers": [consumer]}
    return type("Shop", (Workflow,), {"slug": "shop", **body})


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()


@pytest.mark.parametrize("consumer", [Filtered, Batched], ids=lambda consumer: consumer.__name__)
def test_the_host_does_not_retry_at_once(consumer: type[Consumer]) -> None:
    with deployed(shop(consumer)):
        publish("orders", "o1")
        assert work() == [consumer.__name__]
        assert not is_due(minutes(24 * 60))
        assert next_due(NOW) is None
        assert work(now=minutes(24 * 60)) == []
        assert events("orders") == {"o1": "pending"}
        run = Run.objects.get()
        assert (run.status, (run.prepare_result or {})["reserve"]) == ("committed", [])
        assert (run.effect, run.mutation_result, run.summary) == ("", None, "Found nothing to do")


@pytest.mark.parametrize(
    ("consumer", "message_ids"), [(Filtered, ["o2"]), (Batched, ["o2", "o3"])], ids=["Filtered", "Batched"]
)
def test_a_new_event_is_the_trigger(consumer: type[Consumer], message_ids: list[str]) -> None:
    with deployed(shop(consumer)):
        publish("orders", "o1")
        work()
        publish("orders", *message_ids, payload="urgent")
        assert work() == [consumer.__name__] * 2
        assert events("orders")["o2"] == "consumed"


def test_mutate_is_left_out_and_next_runs_all_the_same() -> None:
    with deployed(shop(Batched)):
        publish("orders", "o1")
        work()
        assert told == ["next: none"]
        publish("orders", "o2", "o3")
        work()
        assert told == ["next: none", "mutate", "next: none", "next: none"]
