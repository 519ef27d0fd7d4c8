"""What the code says becomes rows; whatever it no longer has is stopped, never deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest

from activities.models import Activity
from database import clock
from tests.base import NOW, SOMEBODY, fresh
from tests.timeline import minutes
from tests.workflows.base import defined, deploy_all, deployed, events, publish, work
from tests.workflows.scripted import Script, last
from workflows import AuthRequired, Consumer, Indeterminate, Prepared, Producer, Transient, Workflow
from workflows.contexts import PrepareContext, ProduceContext
from workflows.deployment import rehearse
from workflows.discovery import definitions
from workflows.models import Event, Handler, Run, Subscription, Topic
from workflows.models import Workflow as Model

pytestmark = pytest.mark.django_db


class Poll(Producer):
    every = "5m"
    publishes = ["mail"]
    version = "1"

    def produce(self, ctx: ProduceContext) -> Any:
        return None


class Read(Consumer):
    subscribe = ["mail"]
    version = "1"

    def prepare(self, ctx: PrepareContext) -> Prepared | None:
        return Prepared(reserve=ctx.peek(self.subscribe[0]))


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail"}
    producers = [Poll]
    consumers = [Read]


def inbox(**fields: Any) -> type[Workflow]:
    return type("Inbox", (Inbox,), fields)


def variant(handler: type, **fields: Any) -> type[Any]:
    return type(handler.__name__, (handler,), fields)


def stored() -> dict[str, list[dict[str, Any]]]:
    models: list[Any] = [Model, Handler, Topic, Subscription, Event, Run, Activity]
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in models}


def told(*workflows: type[Workflow], now: Any = NOW) -> list[str]:
    with defined(*workflows):
        return [" ".join(str(change).split()) for change in deploy_all(now=now)]


def test_everything_is_told_and_recorded_and_the_same_again_changes_nothing() -> None:
    assert told(Inbox) == [
        "new topic mail",
        "new workflow inbox",
        "new handler inbox.Poll",
        "new handler inbox.Read",
        "new subscription inbox.Read ← mail",
    ]
    activity = Activity.objects.get(operation="deploy")
    assert (activity.initiator_name, activity.target_name) == ("ada", "Inbox")
    assert "new      handler inbox.Poll" in (activity.details or {})["changes"]
    assert Topic.objects.get().workflow == Model.objects.get()
    before = stored()
    assert told(Inbox, now=minutes(1)) == []
    assert stored() == before
    assert told(inbox(title="Letters", topics={"mail": "Letters"})) == [
        "changed topic mail (title: Letters)",
        "changed workflow inbox (title: Letters)",
    ]


def test_a_new_schedule_lets_the_producer_run_at_once() -> None:
    with deployed(Inbox):
        work()
    (change,) = told(inbox(producers=[variant(Poll, every="1h")]), now=minutes(1))
    assert change.startswith("changed handler inbox.Poll (spec: ")
    assert Handler.objects.get(name="Poll").next_run_at == minutes(1)


class Left(Read):
    """Takes nothing."""

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared()


def test_the_state_of_a_handler_and_a_pause_stay_even_where_it_was_gone_for_a_while() -> None:
    """Such as where a module could not be imported for one start of the scheduler."""
    told(Inbox)
    Handler.objects.filter(name="Read").update(state={"cursor": 9})
    Model.objects.get().pause("audit", initiator=SOMEBODY, now=NOW)
    told(inbox(title="Letters", consumers=[variant(Read, version="2")]), now=minutes(1))
    assert Handler.objects.get(name="Read").state == {"cursor": 9}
    assert (Model.objects.get().status, Model.objects.get().note) == ("paused", "audit")
    told(now=minutes(1))
    assert Model.objects.get().status == "stopped"
    told(Inbox, now=minutes(2))
    assert (Model.objects.get().status, Model.objects.get().note) == ("paused", "audit")
    with defined(Inbox):
        assert work(now=minutes(60)) == []


class TestWhileARunIsActive:
    """It ends with the code that it began with; the new code has its turn all the same."""

    @pytest.fixture
    def code(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            yield stack

    def test_a_producer_runs_again_and_by_its_new_schedule(self, code: ExitStack) -> None:
        class Slow(Poll):
            every = "24h"

            def produce(self, ctx: ProduceContext) -> Any:
                code.enter_context(deployed(inbox(producers=[quick], consumers=[]), now=minutes(1)))

        quick = type("Slow", (Poll,), {"version": "2"})
        code.enter_context(deployed(inbox(producers=[Slow], consumers=[])))
        assert work() == ["Slow"]
        assert Handler.objects.get().next_run_at == minutes(1)
        assert work(now=minutes(1)) == ["Slow"]
        assert Handler.objects.get().next_run_at == minutes(5)

    @pytest.mark.parametrize("has_run", [True, False], ids=["that has run before", "in its first run"])
    def test_a_consumer_looks_again_at_what_the_old_one_left(self, code: ExitStack, has_run: bool) -> None:
        class Late(Read):
            def prepare(self, ctx: PrepareContext) -> Prepared:
                if ctx.peek("mail"):
                    code.enter_context(deployed(inbox(producers=[], consumers=[eager]), now=NOW))
                return Prepared()

        eager = type("Late", (Read,), {"version": "2"})
        code.enter_context(deployed(inbox(producers=[], consumers=[Late])))
        if has_run:
            assert work() == ["Late"]
        publish("mail", "a")
        assert work() == ["Late"] * 3
        assert events("mail") == {"a": "consumed"}


class TestStoppedAndResumed:
    def test_a_workflow_that_the_code_no_longer_has_and_has_again(self) -> None:
        with deployed(Inbox):
            publish("mail", "a")
            work()
        assert told(now=minutes(1)) == ["stopped workflow inbox"]
        workflow = Model.objects.get()
        assert (workflow.status, workflow.due_at) == ("stopped", None)
        publish("mail", "b", now=minutes(2))
        assert told(now=minutes(2)) == []
        with defined():
            assert work(now=minutes(7)) == []
        assert told(Inbox, now=minutes(7)) == ["resumed workflow inbox"]
        with defined(Inbox):
            assert work(now=minutes(7)) == ["Read", "Read", "Poll"]

    def test_a_handler_that_the_code_no_longer_has_and_has_again(self) -> None:
        with deployed(Inbox):
            work()
        assert told(inbox(producers=[]), now=minutes(1)) == [
            "changed handler inbox.Read (position: 0)",
            "stopped handler inbox.Poll",
        ]
        handler = Handler.objects.get(name="Poll")
        assert (handler.is_stopped, handler.next_run_at) == (True, None)
        with defined(inbox(producers=[])):
            assert work(now=minutes(60)) == ["Read"]
        assert told(Inbox, now=minutes(60)) == [
            "changed handler inbox.Poll (is_stopped: False)",
            "changed handler inbox.Read (position: 1)",
        ]
        with defined(Inbox):
            assert "Poll" in work(now=minutes(60))


REST = inbox(topics={"mail": "Mail", "rows": "Rows"}, producers=[], consumers=[type("Other", (Read,), {})])
# Where it was stuck and why, what a person has to say of it, and what becomes of its event, by whom.
GONE: list[tuple[str, Exception, str, str, str]] = [
    ("prepare", Transient("?"), "", "consumed", "Other"),
    ("mutate", AuthRequired("?"), "", "consumed", "Other"),
    ("next", ValueError("?"), "", "consumed", "Sort"),
    ("apply", Indeterminate("?"), "happened", "consumed", "Sort"),
    ("apply", Indeterminate("?"), "did not", "consumed", "Other"),
    ("apply", Indeterminate("?"), "skip", "skipped", "Sort"),
]


@pytest.mark.parametrize(("place", "trouble", "answer", "becomes", "by"), GONE)
def test_a_handler_that_is_gone_while_its_run_is_stuck_holds_nobody_up(
    place: str, trouble: Exception, answer: str, becomes: str, by: str
) -> None:
    """Before its mutation its events are free for others; after it, or if a person says so, taken."""
    with deployed(Script(**{place: [trouble]}).workflow()):
        publish("mail", "a")
        work()
        stuck = last()
        assert stuck.is_stuck
    with deployed(REST, now=minutes(1)):
        handlers = work(now=minutes(1))
        if answer:
            assert (handlers, fresh(stuck).is_stuck) == ([], True)
            say = (
                partial(stuck.skip, "")
                if answer == "skip"
                else partial(stuck.reconcile, answer == "happened", "")
            )
            say(initiator=SOMEBODY, now=minutes(2))
            work(now=minutes(2))
        assert events("mail") == {"a": becomes}
        assert Run.objects.get(reserved__message_id="a").handler.name == by
        assert fresh(stuck).settled_at == minutes(2 if answer else 1)
        assert not Run.objects.open().exists()
        assert not stuck.retries.exists()


def test_a_topic_that_moves_to_another_consumer_shows_it_what_is_pending() -> None:
    class Other(Workflow):
        slug, title, consumers = "other", "Other", [Read]

    with deployed(inbox(consumers=[Left])):
        publish("mail", "a")
        work()
    with deployed(inbox(consumers=[]), now=minutes(1)):
        assert not Subscription.objects.exists()
    with deployed(inbox(consumers=[]), Other, now=minutes(1)):
        assert Subscription.objects.get().handler.name == "Read"
        work(now=minutes(1))
        assert events("mail") == {"a": "consumed"}


class TestEventsThatAStuckRunGivesBack:
    """No lost wake-up: when they are released, whoever consumes their topic by now has seen it empty."""

    def stick(self) -> Run:
        workflow = Script(mutate=[AuthRequired("sign in again")]).workflow(subscribe=["mail", "rows"])
        with deployed(workflow):
            publish("mail", "a")
            work()
            assert events("mail") == {"a": "reserved"}
            return last()

    @contextmanager
    def moved(self, reader: type[Consumer] = Read) -> Iterator[None]:
        first = Script().workflow(subscribe=["rows"], prepare=lambda *_: Prepared())
        second = {"slug": "second", "title": "Second", "consumers": [reader]}
        with deployed(first, type("Second", (Workflow,), second)):
            yield

    @pytest.mark.django_db(transaction=True)
    def test_wake_the_new_consumer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clock, "now", lambda: minutes(2))
        stuck = self.stick()
        with self.moved():
            work()
            stuck.retry("", initiator=SOMEBODY, now=minutes(2))
            assert Run.objects.active().filter(handler__name="Read").exists()
            work(now=minutes(2))
            assert events("mail") == {"a": "consumed"}
            assert Run.objects.get(reserved__message_id="a").handler.name == "Read"

    def test_wake_it_also_if_the_process_dies_before_it_says_so(self) -> None:
        """What a transaction leaves for afterwards is lost in this test."""
        stuck = self.stick()
        with self.moved():
            work()
            stuck.retry("", initiator=SOMEBODY, now=minutes(2))
            assert work(now=minutes(2)) == ["Sort"]
            assert work(now=minutes(2)) == ["Read", "Read"], "it was found when somebody looked again"
            assert events("mail") == {"a": "consumed"}

    def test_are_seen_also_if_the_new_one_is_just_looking(self) -> None:
        stuck = self.stick()

        class Looking(Read):
            def prepare(self, ctx: PrepareContext) -> Prepared:
                found = ctx.peek("mail")
                if fresh(stuck).is_stuck:
                    stuck.retry("", initiator=SOMEBODY, now=NOW)
                    stuck.workflow.start(NOW)
                return Prepared(reserve=found)

        with self.moved(Looking):
            assert work().count("Looking") == 3
            assert events("mail") == {"a": "consumed"}


def test_a_rehearsal_says_what_would_change_and_changes_nothing() -> None:
    with deployed(Inbox):
        publish("mail", "a")
        work()
    before = stored()
    with defined(inbox(title="Letters", producers=[], consumers=[variant(Read, version="2")])):
        changes = rehearse(definitions(), initiator=SOMEBODY, now=minutes(1))
        assert stored() == before
        assert changes == deploy_all(now=minutes(1))
    assert [change.how for change in changes] == ["changed", "changed", "stopped"]
