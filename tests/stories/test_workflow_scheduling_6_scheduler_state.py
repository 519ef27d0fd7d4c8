"""Scheduler state: what is kept, what follows from it, and what deployments and restarts make of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from database import clock
from execution.loops.scheduler import is_due, tick
from tests.base import NOW, claim, fresh, make_worker, seconds
from tests.timeline import minutes
from tests.workflows.base import deployed, publish, runs, work
from workflows import Consumer, Mutation, Prepared, Producer, Workflow
from workflows.contexts import NextContext, PrepareContext, ProduceContext
from workflows.models import Handler, Run, Subscription

pytestmark = pytest.mark.django_db


class Poll(Producer):
    every = "5m"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        return {"polled": (ctx.state or {"polled": 0})["polled"] + 1}


class Read(Consumer):
    subscribe = ["mail"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek("mail"), wake_at=ctx.now + timedelta(hours=1))

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        return {"read": (ctx.state or {"read": 0})["read"] + len(prepared.reserve)}


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail"}
    producers = [Poll]
    consumers = [Read]


def handler(name: str) -> Handler:
    return Handler.objects.get(name=name)


def is_dirty() -> bool:
    _, consumers = Handler.objects.facts(handler("Read").workflow_id)
    return any(each.is_dirty for each in consumers)


def test_times_and_the_handlers_own_state_are_persisted() -> None:
    with deployed(Inbox) as workflow:
        assert handler("Poll").next_run_at == NOW
        publish("mail", "a", "b")
        work()
        assert fresh(workflow).due_at == minutes(5)
        assert (handler("Poll").next_run_at, handler("Read").wake_at) == (minutes(5), minutes(60))
        work(now=minutes(5))
        assert (handler("Read").state, handler("Poll").state) == ({"read": 2}, {"polled": 2})


def test_dirty_is_a_topic_that_goes_beyond_what_was_seen() -> None:
    """The seed keeps `dirty` and `queued` in memory; here they follow from what is stored."""
    with deployed(Inbox):
        assert is_dirty()
        work()
        assert not is_dirty()
        publish("mail", "a")
        assert is_dirty()
        work()
        assert not is_dirty()
        assert Subscription.objects.get().cursor == 1


class TestSchedulerLogic:
    def test_a_tick_with_nothing_due_starts_nothing_and_an_event_is_due_at_once(self) -> None:
        with deployed(Inbox):
            work()
            assert not is_due(minutes(5) - seconds(1))
            tick(minutes(5) - seconds(1))
            assert Run.objects.active().count() == 0
            publish("mail", "a", now=minutes(1))
            assert is_due(minutes(1))

    def test_while_a_run_is_active_a_trigger_lets_nobody_look_in_vain(self) -> None:
        with deployed(Inbox) as workflow:
            workflow.start(NOW)
            publish("mail", "a")
            assert not is_due(minutes(1))


@pytest.mark.django_db(transaction=True)
def test_whoever_publishes_or_commits_starts_what_follows_without_a_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    with deployed(Inbox):
        assert runs() == [("Read", "preparing", "active")]
        work()
        publish("mail", "a")
        assert Run.objects.active().get().handler.name == "Read"
        assert len(claim(make_worker())) == 1


class TestRestartRecovery:
    def test_what_is_due_runs_once_and_what_is_to_come_waits_for_its_time(self) -> None:
        with deployed(Inbox):
            work()
            publish("mail", "a")
        with deployed(Inbox, now=minutes(4)):
            assert work(now=minutes(4)) == ["Read", "Read"], "it had not seen this event"
            assert work(now=minutes(5)) == ["Poll"]
        with deployed(Inbox, now=minutes(63)):
            assert work(now=minutes(63)) == ["Poll"], "once, whatever was missed"
            assert work(now=minutes(64)) == ["Read"], "at the time for which it asked before"

    def test_a_publication_of_which_nobody_could_be_told_is_found_by_the_next_tick(self) -> None:
        """Inside this transaction nothing is told after the commit, as if the publisher had died there."""
        with deployed(Inbox):
            work()
            publish("mail", "a")
            assert Run.objects.active().count() == 0
            tick(NOW)
            assert Run.objects.active().count() == 1
