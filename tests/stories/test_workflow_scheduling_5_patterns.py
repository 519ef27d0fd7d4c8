"""Pattern coverage: each pattern is a real consumer, and runs when it should, no more and no less."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.base import seconds
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from workflows import Consumer, Mutation, Pending, Prepared, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext
from workflows.models import Handler

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
sent: list[tuple[datetime, list[str]]] = []


class Sending(Consumer):
    """Sends what it reserved, all in one."""

    subscribe = ["notifications"]

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(lambda: sent.append((ctx.now, [each.message_id for each in prepared.reserve])))


def sending(consumer: type[Consumer]) -> type[Workflow]:
    topics = dict.fromkeys(consumer.subscribe, "")
    body = {"slug": "news", "title": "News", "topics": topics, "consumers": [consumer]}
    return type("News", (Workflow,), body)


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def test_simple_fifo() -> None:
    """Wake trigger: a new event. Always takes it immediately."""

    class Fifo(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            return Prepared(reserve=ctx.peek("notifications")[:1])

    with deployed(sending(Fifo)):
        work()
        publish("notifications", "a", "b")
        publish("notifications", "c")
        work(now=minutes(1))
        assert sent == [(minutes(1), ["a"]), (minutes(1), ["b"]), (minutes(1), ["c"])]
        assert work(now=minutes(24 * 60)) == []


def test_correlation() -> None:
    """Wake trigger: a new event. Waits until the correlated event arrives."""

    class Match(Sending):
        subscribe = ["orders", "payments"]

        def prepare(self, ctx: PrepareContext) -> Prepared:
            paid = {each.message_id: each for each in ctx.peek("payments")}
            pairs = [(each, paid[each.message_id]) for each in ctx.peek("orders") if each.message_id in paid]
            return Prepared(reserve=[event for pair in pairs[:1] for event in pair])

    with deployed(sending(Match)):
        publish("orders", "1", "2")
        assert work() == ["Match"]
        publish("payments", "9")
        assert work(now=minutes(1)) == ["Match"]
        publish("payments", "2")
        assert work(now=minutes(2)) == ["Match", "Match"]
        assert sent == [(minutes(2), ["2", "2"])]
        assert events("orders") == {"1": "pending", "2": "consumed"}
        assert events("payments") == {"9": "pending", "2": "consumed"}


def test_time_window() -> None:
    """wakeAt: in an hour. Takes events after the delay."""

    class Delay(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            found = ctx.peek("notifications")
            due = [each for each in found if each.created_at + HOUR <= ctx.now]
            later = [each.created_at + HOUR for each in found if each not in due]
            return Prepared(reserve=due, wake_at=min(later, default=None))

    with deployed(sending(Delay)):
        publish("notifications", "a", now=minutes(0))
        work()
        publish("notifications", "b", now=minutes(20))
        work(now=minutes(20))
        assert sent == []
        for minute in (59, 60, 61, 79, 80, 99):
            work(now=minutes(minute))
        assert sent == [(minutes(60), ["a"]), (minutes(80), ["b"])]


class TestBatchAndTimeout:
    """wakeAt: in an hour. Wake trigger: a new event or wakeAt, whichever threshold hits first."""

    class Batch(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            found = ctx.peek("notifications")
            oldest = min((each.created_at for each in found), default=None)
            if len(found) >= 3 or (oldest and oldest + HOUR <= ctx.now):
                return Prepared(reserve=found)
            return Prepared(wake_at=oldest and oldest + HOUR)

    def test_the_count(self) -> None:
        with deployed(sending(self.Batch)):
            for minute, name in enumerate("abc"):
                publish("notifications", name, now=minutes(minute))
                work(now=minutes(minute))
            assert sent == [(minutes(2), ["a", "b", "c"])]
            assert work(now=minutes(60)) == []

    def test_the_timeout(self) -> None:
        with deployed(sending(self.Batch)):
            publish("notifications", "a", now=minutes(1))
            work(now=minutes(1))
            publish("notifications", "b", now=minutes(2))
            work(now=minutes(2))
            assert work(now=minutes(61) - seconds(1)) == []
            assert work(now=minutes(61)) == ["Batch", "Batch"]
            assert sent == [(minutes(61), ["a", "b"])]


class TestDailyDigest:
    """wakeAt: tomorrow at nine. Events wake it too, and it returns nothing until then."""

    class Digest(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            pending = ctx.peek("notifications")
            if not self.is_digest_time(ctx):
                return Prepared(wake_at=self.next_digest(ctx.now))
            return Prepared(
                reserve=pending, data=str(ctx.now.date()), wake_at=self.next_digest(ctx.now).isoformat()
            )

        def is_digest_time(self, ctx: PrepareContext) -> bool:
            return ctx.now.hour >= 9 and (ctx.state or {}).get("last") != str(ctx.now.date())

        def next_digest(self, now: datetime) -> datetime:
            nine = now.replace(hour=9, minute=0, second=0, microsecond=0)
            return nine if now < nine else nine + timedelta(days=1)

        def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
            return {"last": prepared.data} if prepared.data else None

    def test_it_sends_once_a_day(self) -> None:
        with deployed(sending(self.Digest)):
            for hour in (0, 5, 6, 7, 20, 29, 30, 31, 53, 54, 55):
                at = minutes(60 * hour)
                publish("notifications", f"h{hour}", now=at)
                work(now=at)
        assert [at.isoformat() for at, _ in sent] == [
            "2026-11-16T09:00:00+00:00",
            "2026-11-17T09:00:00+00:00",
            "2026-11-18T09:00:00+00:00",
        ]
        assert [names for _, names in sent] == [
            ["h0", "h5", "h6"],
            ["h7", "h20", "h29", "h30"],
            ["h31", "h53", "h54"],
        ]

    def test_without_any_event_it_is_woken_for_tomorrows_all_the_same(self) -> None:
        with deployed(sending(self.Digest)):
            work()
            publish("notifications", "a")
            work(now=minutes(6 * 60))
            assert sent == [(minutes(6 * 60), ["a"])]
            assert Handler.objects.get().wake_at == minutes(30 * 60)
            publish("notifications", "b", now=minutes(7 * 60))
            assert work(now=minutes(7 * 60)) == ["Digest"]
            assert work(now=minutes(30 * 60))[0] == "Digest"
            assert sent[1:] == [(minutes(30 * 60), ["b"])]


def test_what_a_consumer_sees_of_an_event() -> None:
    found: list[Pending] = []

    class Look(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            found[:] = ctx.peek("notifications", limit=2)
            return Prepared()

    with deployed(sending(Look)):
        publish("notifications", "a", "b", "c", payload={"size": 3})
        work()
    assert [(each.message_id, each.payload, each.attempt) for each in found] == [
        ("a", {"size": 3}, 1),
        ("b", {"size": 3}, 1),
    ]
