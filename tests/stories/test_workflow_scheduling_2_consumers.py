"""Consumers run when there is work to do: a new event has come, or their wake time."""

from __future__ import annotations

import pytest

from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from workflows import Consumer, Prepared, Workflow
from workflows.contexts import PrepareContext

pytestmark = pytest.mark.django_db


class Watch(Consumer):
    subscribe = ["mail"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        ctx.peek("mail")
        return Prepared()


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail", "other": "Other"}
    consumers = [Watch]


def test_a_new_event_in_a_subscribed_topic_starts_a_run_and_nothing_else_does() -> None:
    """But its wake time: in the story of that."""
    with deployed(Inbox):
        work()
        publish("other", "m1")
        assert work() == []
        publish("mail", "m1")
        assert work() == ["Watch"]
        publish("mail", "m1", payload="again")
        assert work() == []
        assert work(now=minutes(600)) == []


def test_no_wake_up_is_lost_and_events_during_a_run_are_coalesced_to_one_more() -> None:
    """They came after this run had looked: another one starts, which takes all of them."""

    class Late(Consumer):
        subscribe = ["mail"]

        def prepare(self, ctx: PrepareContext) -> Prepared:
            found = ctx.peek("mail")
            if not found:
                for number in range(5):
                    publish("mail", f"late {number}")
            return Prepared(reserve=found)

    class Lately(Inbox):
        consumers = [Late]

    with deployed(Lately):
        assert work() == ["Late", "Late", "Late"]
        assert set(events("mail").values()) == {"consumed"}


def test_after_its_wake_time_it_runs_again_until_it_reserves_nothing() -> None:
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
