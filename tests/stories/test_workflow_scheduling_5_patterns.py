"""Pattern coverage: each pattern is a real consumer, and runs when it should, no more and no less."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from activities.models import OutputLine
from tests.base import seconds
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from workflows import Consumer, Mutation, Pending, Prepared, Workflow, contexts
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


def test_batch_and_timeout() -> None:
    """wakeAt: in an hour. Wake trigger: a new event or wakeAt, whichever threshold hits first."""

    class Batch(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            found = ctx.peek("notifications")
            oldest = min((each.created_at for each in found), default=None)
            if len(found) >= 3 or (oldest and oldest + HOUR <= ctx.now):
                return Prepared(reserve=found)
            return Prepared(wake_at=oldest and oldest + HOUR)

    with deployed(sending(Batch)):
        for minute, name in enumerate("abcde"):
            publish("notifications", name, now=minutes(minute))
            work(now=minutes(minute))
        assert sent == [(minutes(2), ["a", "b", "c"])]
        assert work(now=minutes(63) - seconds(1)) == []
        assert work(now=minutes(63)) == ["Batch", "Batch"]
        assert sent[1:] == [(minutes(63), ["d", "e"])]


def test_daily_digest() -> None:
    """wakeAt: tomorrow at nine. Events wake it too, and it returns nothing until then."""

    class Digest(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            pending, today = ctx.peek("notifications"), str(ctx.now.date())
            nine = ctx.now.replace(hour=9, minute=0, second=0, microsecond=0)
            wake_at = nine if ctx.now < nine else nine + timedelta(days=1)
            if ctx.now < nine or (ctx.state or {}).get("last") == today:
                return Prepared(wake_at=wake_at)
            return Prepared(reserve=pending, data=today, wake_at=wake_at.isoformat())

        def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
            return {"last": prepared.data} if prepared.data else None

    with deployed(sending(Digest)):
        for hour in (0, 5, 6, 7, 29):
            publish("notifications", f"h{hour}", now=minutes(60 * hour))
            work(now=minutes(60 * hour))
        assert Handler.objects.get().wake_at == minutes(60 * 30)
        assert work(now=minutes(60 * 30))[0] == "Digest"
    assert sent == [(minutes(60 * 6), ["h0", "h5", "h6"]), (minutes(60 * 30), ["h7", "h29"])]


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


@pytest.mark.parametrize(
    ("limit", "seen", "is_said"), [(None, 2, True), (3, 3, False), (1, 1, False)], ids=str
)
def test_a_list_that_ends_early_says_so_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, seen: int, is_said: bool
) -> None:
    """A consumer that waits for a pair would never learn that the other half is further on."""
    monkeypatch.setattr(contexts, "DEFAULT_PEEK_LIMIT", 2)
    found: list[Pending] = []

    class Look(Sending):
        def prepare(self, ctx: PrepareContext) -> Prepared:
            found[:] = ctx.peek("notifications", limit=limit)
            return Prepared()

    with deployed(sending(Look)):
        publish("notifications", "a", "b", "c")
        work()
    said = " ".join(OutputLine.objects.values_list("text", flat=True))
    assert (len(found), "more than 2 pending events" in said) == (seen, is_said)
