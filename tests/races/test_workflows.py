"""Publishers, consumers, schedulers and people who meet at one workflow: one run at a time, nothing lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from django.db import connection

from activities.models import Activity
from database import clock
from execution.loops.scheduler import tick
from execution.models import Job, Worker, WorkerTask
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, claim, make_worker, seconds
from tests.loops import running_worker
from tests.races.meeting import Caller, at_once, queue_up
from tests.waiting import PATIENCE_SECONDS, wait_until
from tests.workflows.base import defined, deploy_all, deployed, events, publish, runs, work
from tests.workflows.invariants import effects, note_effect, unfinished, violations
from workflows import Consumer, Mutation, PermissionRequired, Prepared, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext
from workflows.deployment import rehearse
from workflows.discovery import definitions
from workflows.models import Event, Run, Topic
from workflows.models import Workflow as Row
from workflows.models.event import Publication, Published

pytestmark = pytest.mark.django_db(transaction=True)

PUBLISHERS, PUBLISHED = 4, {"postgresql": 15, "sqlite": 5}


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class Taking(Consumer):
    """Takes whatever there is, and notes it."""

    ledger: Path

    def prepare(self, ctx: PrepareContext) -> Prepared:
        found = [event for topic in self.subscribe for event in ctx.peek(topic)]
        return Prepared(found, data=[f"{event.topic}/{event.message_id}" for event in found])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(self.take, ctx.idempotency_key, prepared.data)

    def take(self, key: str, names: list[str]) -> list[str]:
        note_effect(self.ledger, key, names)
        return names


class First(Taking):
    subscribe = ["a"]
    publishes = ["b"]

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        for event in prepared.reserve:
            ctx.publish("b", event.message_id)


class Second(Taking):
    subscribe = ["b"]


class Third(Taking):
    subscribe = ["c"]


class One(Workflow):
    slug, title = "one", "One"
    topics = {"a": "A", "b": "B"}
    consumers = [First]


class Two(Workflow):
    slug, title = "two", "Two"
    topics = {"c": "C"}
    consumers = [Second, Third]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Taking, "ledger", tmp_path / "ledger", raising=False)
    return tmp_path / "ledger"


def test_publishers_and_a_worker(ledger: Path) -> None:
    """Every event is consumed exactly once, in sequence without gaps, and the last one wakes somebody too."""
    count = PUBLISHED[connection.vendor]
    stopping = threading.Event()
    with deployed(One, Two, now=clock.now()), running_worker(threads=4):
        reader = Caller(partial(read_without_gaps, stopping))
        reader.start()
        results = at_once(*(partial(publish_many, number, count) for number in range(PUBLISHERS)))
        wait_until(is_idle)
        stopping.set()
        reader.join(PATIENCE_SECONDS)
    assert results == [None] * PUBLISHERS
    assert (reader.result or 0) > 0
    assert unfinished(list(Row.objects.all())) == []
    assert violations(ledger, now=clock.now()) == []
    taken = [name for each in effects(ledger).values() for names in each for name in names]
    assert len(taken) == len(set(taken)) == Event.objects.count() == 3 * PUBLISHERS * count


def publish_many(publisher: int, count: int) -> None:
    """Each event twice: the second time it may be pending, reserved or consumed."""
    for number in range(count):
        events = [Publication.of(topic, f"{publisher}/{number}") for topic in ("c", "a")]
        for wanted in (events, events[::-1]):
            Topic.objects.publish(wanted, now=clock.now())


def read_without_gaps(stopping: threading.Event) -> int:
    """Whoever sees a sequence number sees all before it. How often that was seen to."""
    looks = 0
    while not stopping.wait(0.01):
        for topic in Topic.objects.filter(last_seq__gt=0):
            assert topic.events.filter(seq__lte=topic.last_seq).count() == topic.last_seq
            looks += 1
    return looks


def is_idle() -> bool:
    return not Run.objects.open().exists() and not WorkerTask.objects.exists()


def test_one_run_starts_however_many_look(ledger: Path) -> None:
    with deployed(One):
        row = Row.objects.get(slug="one")
        for round_ in range(3):
            results = at_once(
                *[partial(row.start, NOW)] * 2,
                *[partial(tick, NOW)] * 2,
                *(partial(publish, "a", f"{round_} {number}") for number in range(2)),
            )
            assert [each for each in results if isinstance(each, Exception)] == []
            assert Run.objects.active().count() == 1
        assert runs() == [("First", "preparing", "active")]
        assert WorkerTask.objects.count() == 1


def test_two_schedulers_open_at_the_same_moment(ledger: Path) -> None:
    with defined(One, Two):
        for _ in range(3):
            Row.objects.all().delete()
            Topic.objects.all().delete()
            results = at_once(deploy_all, deploy_all, deploy_all)
            assert [each for each in results if isinstance(each, Exception)] == []
            assert sorted(Row.objects.values_list("slug", flat=True)) == ["one", "two"]
            WorkerTask.objects.all().delete()


def test_a_subscription_waits_for_those_who_publish(ledger: Path) -> None:
    """Whoever did not see it would wake nobody for what is committed after its consumer has looked."""

    class Later(Workflow):
        slug, title = "one", "One"
        topics = {"a": "A", "b": "B", "c": "C"}
        consumers = [Third]

    with deployed(Later):
        Run.objects.all().delete()
        WorkerTask.objects.all().delete()
    with defined(One, Two):
        (ran,) = queue_up(lambda: deploy_all() and work(), behind=partial(publish, "a", "x"))
    assert "First" in ran
    assert violations(ledger, now=NOW) == []
    assert events("a") == {"x": "consumed"}


def test_recovery_and_publishing_lock_workflows_in_the_same_order(ledger: Path) -> None:
    """The older task is of the newer workflow, and both are recovered by one transaction."""
    with deployed(One, Two):
        Run.objects.all().delete()
        WorkerTask.objects.all().delete()
        for slug in ("two", "one"):
            Row.objects.get(slug=slug).start(NOW)
        worker = make_worker()
        assert len(claim(worker)) == 2
        Worker.objects.filter(pk=worker.pk).bury(now=NOW)
        wanted = [Publication.of(topic, "x") for topic in ("a", "c")]
        results = queue_up(
            partial(Topic.objects.publish, wanted, now=NOW),
            partial(WorkerTask.objects.recover, now=NOW),
            behind=Row.objects.filter(slug="one"),
        )
        assert [each for each in results if isinstance(each, Exception)] == []
        assert results[1] == 2


def test_a_rehearsal_of_a_deployment_is_in_nobodys_way(ledger: Path) -> None:
    """It keeps what it locks for one workflow while it goes on with the next, whose topic the first one's run
    is publishing to."""
    with deployed(One, Two) as one:
        results = queue_up(
            partial(rehearse, definitions(), initiator=SOMEBODY, now=NOW),
            partial(Topic.objects.publish, [Publication.of("c", "x")], now=NOW, awaken=[one.pk]),
            behind=Row.objects.filter(slug="one"),
        )
    assert results == [[], Published(new=1)]


def test_reserving_what_is_published_again(ledger: Path) -> None:
    """Both write to the same pending events: one as they come, the other by their message ids, backwards."""
    ids = [f"m{number:04}" for number in range(600)]
    with deployed(One, Two):
        publish("c", *ids[::-1])
        run = Run.objects.active().get(workflow__slug="two")
        Run.objects.filter(pk=run.pk).update(handler=run.workflow.handlers.get(name="Third"))
        run.refresh_from_db()
        run.start(NOW)
        found = [
            event.as_pending() for event in Event.objects.pending().select_related("topic").order_by("seq")
        ]
        results = queue_up(
            partial(run.reach_prepared, Prepared(found), now=NOW),
            partial(publish_by_index, ids[290:310]),
            behind=Event.objects.filter(message_id=ids[300]),
        )
        assert results == [True, None]


def publish_by_index(ids: list[str]) -> None:
    """As PostgreSQL does it where there are very many events."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE workflows_event")
            for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin"):
                cursor.execute(f"SET enable_{way} = off")
    publish("c", *ids, payload={"again": True})


@pytest.mark.parametrize("second", ["reject", "skip"])
def test_of_two_who_answer_the_first_decides(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """The other one saw what was asked before the answer, and is told."""

    def mutate(consumer: First, ctx: MutateContext, prepared: Prepared) -> None:
        if not ctx.approved:
            raise PermissionRequired("may I?")
        Taking.mutate(consumer, ctx, prepared)

    monkeypatch.setattr(First, "mutate", mutate)
    with deployed(One):
        publish("a", "x")
        work()
        one, other = Run.objects.stuck().get(), Run.objects.stuck().get()
        results = queue_up(
            partial(one.approve, "", initiator=SOMEBODY, now=NOW + seconds(1)),
            partial(getattr(other, second), "", initiator=SOMEBODY, now=NOW + seconds(2)),
            behind=Row.objects.filter(slug="one"),
        )
        if connection.vendor == "postgresql":
            assert results[0] is None
        assert [type(each) for each in results].count(Refused) == 1
        work(now=NOW + seconds(3))
    answers = Activity.objects.filter(target_type="run", operation__in=["approve", second])
    assert answers.count() == 1


@pytest.mark.parametrize("is_deaf", [False, True], ids=["heeds it", "ignores it"])
def test_cancelled_while_running(ledger: Path, monkeypatch: pytest.MonkeyPatch, is_deaf: bool) -> None:
    entered = threading.Event()

    def prepare(consumer: First, ctx: PrepareContext) -> Prepared:
        entered.set()
        while ctx._step.reason is None or not is_deaf:
            time.sleep(0.01) if is_deaf else ctx.wait(0.01)
        return Prepared(ctx.peek("a"), data=["x"])

    monkeypatch.setattr(First, "prepare", prepare)
    with deployed(One, now=clock.now()), running_worker():
        publish("a", "x", now=clock.now())
        assert entered.wait(PATIENCE_SECONDS)
        run = Run.objects.active().get()
        assert Job.find(run.key).cancel(initiator=SOMEBODY, now=clock.now())  # type: ignore[union-attr]
        wait_until(lambda: Run.objects.stuck().filter(status="paused:approval").exists())
        wait_until(lambda: not WorkerTask.objects.exists())
        monkeypatch.setattr(First, "prepare", Taking.prepare)
        Run.objects.stuck().get().approve("", initiator=SOMEBODY, now=clock.now())
        wait_until(is_idle)
    assert unfinished([Row.objects.get()]) == []
    assert violations(ledger, now=clock.now()) == []
