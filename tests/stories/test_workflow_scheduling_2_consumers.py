"""Consumers run when there is work to do: a new event has come, or their wake time."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.base import NOW, seconds
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, runs, work
from workflows import Consumer, Prepared, Workflow
from workflows.contexts import MutateContext, PrepareContext

pytestmark = pytest.mark.django_db


class Watch(Consumer):
    """Reserves what is called by its own name, whenever it looks; wants to look again at `wake`."""

    subscribe = ["mail"]
    wake: datetime | None = None

    def prepare(self, ctx: PrepareContext) -> Prepared:
        mine = [each for each in ctx.peek("mail") if each.message_id.startswith("watch")]
        return Prepared(reserve=mine, wake_at=type(self).wake)


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail", "other": "Other"}
    consumers = [Watch]


@pytest.fixture(autouse=True)
def without_wake() -> None:
    Watch.wake = None


class TestTriggerConditions:
    def test_a_new_event_in_a_subscribed_topic_starts_a_run_and_nothing_else_does(self) -> None:
        with deployed(Inbox):
            work()
            publish("other", "m1")
            assert work() == []
            publish("mail", "m1")
            assert work() == ["Watch"]
            publish("mail", "m1", payload="again")
            assert work() == []

    def test_the_wake_time_starts_a_run(self) -> None:
        Watch.wake = minutes(5)
        with deployed(Inbox):
            work()
            Watch.wake = None
            assert work(now=minutes(5) - seconds(0.001)) == []
            assert work(now=minutes(5)) == ["Watch"]
            assert work(now=minutes(600)) == []

    def test_neither_starts_one_while_another_run_is_active(self) -> None:
        Watch.wake = minutes(5)
        with deployed(Inbox) as workflow:
            work()
            publish("mail", "m1")
            assert workflow.start(NOW) is not None
            publish("mail", "m2")
            assert workflow.start(minutes(5)) is None
            assert runs()[1:] == [("Watch", "preparing", "active")]


class TestQueuedRuns:
    def test_events_during_a_run_are_coalesced_to_one_more(self) -> None:
        class Busy(Consumer):
            subscribe = ["mail"]

            def prepare(self, ctx: PrepareContext) -> Prepared:
                if len(ctx.peek("mail")) == 1:
                    for number in range(5):
                        publish("mail", f"late {number}")
                return Prepared()

        class Busied(Inbox):
            consumers = [Busy]

        with deployed(Busied):
            publish("mail", "m1")
            assert work() == ["Busy", "Busy"]

    def test_no_wake_up_is_lost_when_an_event_is_committed_during_a_run(self) -> None:
        """It came after this run had looked: another one starts."""

        class Late(Consumer):
            subscribe = ["mail"]

            def prepare(self, ctx: PrepareContext) -> Prepared:
                found = ctx.peek("mail")
                if not found:
                    publish("mail", "late")
                return Prepared(reserve=found)

        class Lately(Inbox):
            consumers = [Late]

        with deployed(Lately):
            assert work() == ["Late", "Late", "Late"]
            assert set(events("mail").values()) == {"consumed"}


def test_it_runs_again_until_it_reserves_nothing() -> None:
    class OneByOne(Consumer):
        subscribe = ["mail"]

        def prepare(self, ctx: PrepareContext) -> Prepared:
            return Prepared(reserve=ctx.peek("mail")[:1])

        def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            ctx.apply(lambda: None)

    class Slowly(Inbox):
        consumers = [OneByOne]

    with deployed(Slowly):
        publish("mail", "m1", "m2", "m3")
        assert work() == ["OneByOne"] * 4
        assert set(events("mail").values()) == {"consumed"}


def test_it_runs_again_until_it_reserves_nothing_after_its_wake_time_too() -> None:
    """What it had seen and left alone is as new to it as any event once it has begun to take some."""

    class Delayed(Consumer):
        subscribe = ["mail"]

        def prepare(self, ctx: PrepareContext) -> Prepared:
            due = ctx.peek("mail")[:1] if ctx.now >= minutes(60) else []
            return Prepared(reserve=due, wake_at=None if due else minutes(60))

    class Delaying(Inbox):
        consumers = [Delayed]

    with deployed(Delaying):
        publish("mail", "m1", "m2", "m3")
        assert work() == ["Delayed"]
        assert work(now=minutes(60)) == ["Delayed"] * 4
        assert set(events("mail").values()) == {"consumed"}
