"""Producers look at external systems on a configured schedule, and when somebody says “Run now”."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from activities.models import Activity
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, fresh
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, publish, runs, work
from workflows import Consumer, Prepared, Producer, Transient, Workflow
from workflows.contexts import PrepareContext, ProduceContext
from workflows.models import Handler, Run

pytestmark = pytest.mark.django_db
seen: list[datetime] = []


class PollEmail(Producer):
    every = "5m"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        seen.append(ctx.now)


class PollNews(Producer):
    cron = "30 9 * * *"
    time_zone = "Europe/Berlin"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        ctx.publish("mail", f"news of {ctx.now.date()}")


class Read(Consumer):
    subscribe = ["mail"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek("mail"))


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail"}
    producers = [PollEmail, PollNews]
    consumers = [Read]


class Mailbox(Workflow):
    slug = "mailbox"
    title = "Mailbox"
    topics = {"mail": "Mail"}
    producers = [PollEmail]


def due(name: str) -> datetime | None:
    return Handler.objects.get(name=name).next_run_at


def test_it_runs_every_five_minutes() -> None:
    seen.clear()
    with deployed(Mailbox):
        for minute in (0, 1, 5 - 0.0001, 5, 9, 10, 11):
            work(now=minutes(minute))
    assert seen == [minutes(0), minutes(5), minutes(10)]


class TestTriggerConditions:
    def test_a_time_that_arrives_during_another_run_is_not_skipped_but_queued(self) -> None:
        with deployed(Inbox) as workflow:
            work()
            publish("mail", "m1", now=minutes(4))
            consuming = begin(workflow, minutes(4))
            assert consuming.handler.name == "Read"
            assert workflow.start(minutes(5)) is None
            assert work(now=minutes(6)) == ["Read", "Read", "PollEmail"]

    def test_queued_runs_are_coalesced(self) -> None:
        with deployed(Mailbox) as workflow:
            work()
            workflow.start(minutes(5))
            assert workflow.start(minutes(10)) is None
            assert work(now=minutes(21)) == ["PollEmail"]
            assert work(now=minutes(24)) == []
            assert work(now=minutes(25)) == ["PollEmail"]


class TestManualTrigger:
    def test_all_producers_run_in_their_order_and_their_next_times_are_recomputed(self) -> None:
        """Consumers run because of what was published, and not because of the request."""
        with deployed(Inbox) as workflow:
            work()
            asked = workflow.run_now(initiator=SOMEBODY, now=minutes(7))
            assert [handler.name for handler in asked] == ["PollEmail", "PollNews"]
            assert due("PollEmail") == due("PollNews") == minutes(7)
            assert work(now=minutes(7)) == ["PollEmail", "PollNews"]
            assert due("PollEmail") == minutes(10)
            assert due("PollNews") == datetime.fromisoformat("2026-11-16T08:30:00+00:00")
            workflow.run_now(initiator=SOMEBODY, now=minutes(24 * 60))
            assert work(now=minutes(24 * 60)) == ["PollEmail", "PollNews", "Read", "Read"]
        assert {each.initiator_name for each in Activity.objects.filter(operation="run_now")} == {"ada"}

    def test_it_is_rejected_while_any_run_is_active(self) -> None:
        with deployed(Inbox) as workflow:
            work()
            publish("mail", "m1")
            assert workflow.start(NOW) is not None
            with pytest.raises(Refused, match=r"“Inbox” is running\. Wait until its handler Read has ended"):
                workflow.run_now(initiator=SOMEBODY, now=NOW)
            assert due("PollEmail") == minutes(5)

    @pytest.mark.parametrize("status", ["paused", "stopped"])
    def test_it_is_disabled_while_the_workflow_is(self, status: str) -> None:
        with deployed(Mailbox) as workflow:
            work()
            if status == "paused":
                workflow.pause("audit", initiator=SOMEBODY, now=NOW)
            else:
                workflow.stop(initiator=SOMEBODY, now=NOW)
            with pytest.raises(Refused, match=f"“Mailbox” is {status}"):
                fresh(workflow).run_now(initiator=SOMEBODY, now=NOW)

    def test_without_producers_it_says_why_there_is_nothing_to_run(self) -> None:
        class Reading(Workflow):
            slug, title, topics, consumers = "reading", "Reading", {"mail": "Mail"}, [Read]

        with deployed(Reading) as workflow:
            work()
            with pytest.raises(Refused, match="“Reading” has no producers"):
                workflow.run_now(initiator=SOMEBODY, now=NOW)


def test_a_failed_producer_keeps_its_time_until_it_has_run() -> None:
    class Flaky(Producer):
        every = "5m"
        publishes = ["mail"]

        def produce(self, ctx: ProduceContext) -> Any:
            ctx.publish("mail", "half")
            if ctx.now < minutes(1):
                raise Transient("the server is away")

    class Fragile(Workflow):
        slug, title, topics, producers = "fragile", "Fragile", {"mail": "Mail"}, [Flaky]

    with deployed(Fragile):
        work()
        assert due("Flaky") == NOW
        work(now=minutes(1))
        assert due("Flaky") == minutes(5)
        assert runs() == [("Flaky", "preparing", "paused:transient"), ("Flaky", "committed", "committed")]
        assert Run.objects.latest("pk").published.count() == 1
