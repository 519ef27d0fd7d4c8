"""Workflow-level constraints: one run at a time, consumers first, and a workflow that pauses as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from activities.models import Activity
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, events, publish, runs, work
from tests.workflows.scripted import Script, last
from workflows import AuthRequired, Consumer, Indeterminate, Internal, Prepared, Producer, Transient, Workflow
from workflows.contexts import PrepareContext, ProduceContext
from workflows.failures import error_text
from workflows.models import Run
from workflows.models import Workflow as Model

pytestmark = pytest.mark.django_db


class Taking(Consumer):
    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek(self.subscribe[0])[:1])


class Mail(Taking):
    subscribe = ["mail"]


class Post(Taking):
    subscribe = ["post"]


class Poll(Producer):
    every = "5m"
    publishes = ["mail", "post"]

    def produce(self, ctx: ProduceContext) -> Any:
        ctx.publish("mail", f"at {ctx.now:%H:%M}")


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail", "post": "Post"}
    producers = [Poll]
    consumers = [Mail, Post]


class TestSingleThreaded:
    def test_at_most_one_run_is_active_whatever_is_due(self) -> None:
        with deployed(Inbox) as workflow:
            publish("mail", "a")
            publish("post", "b")
            assert workflow.start(NOW) is not None
            assert [workflow.start(minutes(minute)) for minute in range(0, 30, 5)] == [None] * 6
            assert Run.objects.active().count() == 1

    def test_other_workflows_go_on(self) -> None:
        class Other(Workflow):
            slug, title, topics = "other", "Other", {"letters": "Letters"}
            consumers = [type("Letters", (Taking,), {"subscribe": ["letters"]})]

        with deployed(Inbox, Other) as workflow:
            assert workflow.start(NOW) is not None
            other = Model.objects.get(slug="other").start(NOW)
            assert other is not None
            assert other.handler.name == "Letters"


class TestPriority:
    def test_among_consumers_the_one_with_the_oldest_pending_event_is_first(self) -> None:
        with deployed(Inbox) as workflow:
            work()
            publish("post", "x", now=NOW + seconds(1))
            publish("mail", "y", now=NOW + seconds(2))
            run = begin(workflow, NOW + seconds(3))
            assert run.handler.name == "Post"

    def test_what_is_stuck_comes_before_everything(self) -> None:
        with deployed(Inbox) as workflow:
            work()
            run = begin(workflow, minutes(5))
            assert run.handler.name == "Poll"
            run.crash("worker lost", now=minutes(5))
            publish("mail", "a")
            assert work(now=minutes(5))[0] == "Poll"


STUCK: list[tuple[str, Exception, str]] = [
    ("paused:transient", Transient("rate limit"), "prepare"),
    ("paused:approval", AuthRequired("sign in again"), "prepare"),
    ("paused:reconciliation", Indeterminate("no answer"), "apply"),
    ("failed:logic", ValueError("bad input"), "prepare"),
    ("failed:internal", Internal("connector broke"), "prepare"),
]


class TestPausedWorkflows:
    """Single point of failure: nothing else runs before what failed is resolved."""

    def broken(self, trouble: Exception, place: str) -> type[Workflow]:
        sort = Script(**{place: [trouble]}).workflow().consumers[0]
        body = {
            "topics": {"mail": "", "rows": "", "post": ""},
            "producers": [Poll],
            "consumers": [sort, Post],
        }
        return type("Inbox", (Workflow,), {"slug": "inbox", "title": "Inbox", **body})

    @pytest.mark.parametrize(("status", "trouble", "place"), STUCK, ids=[row[0] for row in STUCK])
    def test_no_other_handler_runs_until_it_is_resolved(
        self, status: str, trouble: Exception, place: str
    ) -> None:
        with deployed(self.broken(trouble, place)) as workflow:
            publish("mail", "a")
            publish("post", "b")
            work()
            stuck = last()
            assert (stuck.status, stuck.due_at is not None) == (status, status == "paused:transient")
            assert work(now=NOW + seconds(9)) == []
            assert [handler for handler, _, _ in runs()] == ["Sort"]
            with pytest.raises(Refused, match=f"until run {stuck.pk} is resolved: {error_text(trouble)}"):
                workflow.run_now(initiator=SOMEBODY, now=NOW)
            if status == "paused:reconciliation":
                stuck.reconcile(True, "", initiator=SOMEBODY, now=minutes(6))
            else:
                stuck.retry("", initiator=SOMEBODY, now=minutes(6))
            done = work(now=minutes(6))
            assert done[0] == "Sort"
            assert {"Post", "Poll"} <= set(done)
            assert events("post") == {"b": "consumed"}


class TestPausedByAPerson:
    def test_nothing_starts_what_is_active_goes_on_and_what_comes_is_seen_to_afterwards(self) -> None:
        """Consumers first."""
        with deployed(Inbox) as workflow:
            publish("mail", "a")
            workflow.start(NOW)
            assert workflow.pause("audit", initiator=SOMEBODY, now=NOW)
            assert work() == ["Mail"]
            assert events("mail") == {"a": "consumed"}
            publish("mail", "b", now=minutes(1))
            assert work(now=minutes(17)) == []
            assert workflow.resume(initiator=SOMEBODY, now=minutes(17))
            ran = work(now=minutes(17))
            assert ran.count("Poll") == 1
            assert ran.index("Mail") < ran.index("Poll")

    def test_a_retry_in_backoff_waits_too(self) -> None:
        with deployed(Script(prepare=[Transient("rate limit")]).workflow()) as workflow:
            publish("mail", "a")
            work()
            workflow.pause("audit", initiator=SOMEBODY, now=NOW)
            assert work(now=minutes(1)) == []
            workflow.resume(initiator=SOMEBODY, now=minutes(2))
            assert work(now=minutes(2)) == ["Sort", "Sort"]

    def test_pause_and_resume_say_whether_they_did_anything(self) -> None:
        with deployed(Inbox) as workflow:
            assert not workflow.resume(initiator=SOMEBODY, now=NOW)
            assert workflow.pause("audit", initiator=SOMEBODY, now=NOW)
            assert not workflow.pause("again", initiator=SOMEBODY, now=NOW)
            assert fresh(workflow).note == "audit"
            assert workflow.resume(initiator=SOMEBODY, now=NOW)
            assert fresh(workflow).note == ""
            recorded = Activity.objects.filter(operation__in=("pause", "resume")).order_by("pk")
            assert list(recorded.values_list("operation", "message")) == [("pause", "audit"), ("resume", "")]
            workflow.stop(initiator=SOMEBODY, now=NOW)
            assert not workflow.pause("", initiator=SOMEBODY, now=NOW)
            assert not workflow.resume(initiator=SOMEBODY, now=NOW)
            assert work(now=minutes(60)) == []
