"""Observable state: what users see of a workflow, in words, without handlers and phases."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.workflows.base import begin, deployed, publish, work
from tests.workflows.scripted import Script, last
from workflows import (
    AuthRequired,
    Consumer,
    Indeterminate,
    Internal,
    Mutation,
    Prepared,
    Producer,
    Transient,
    Workflow,
)
from workflows.contexts import NextContext, PrepareContext, ProduceContext
from workflows.definition import retry
from workflows.failures import Status, Stop, Tries
from workflows.models import Handler, Run
from workflows.models import Workflow as Model
from workflows.words import issue, schedule_words, shown_status

pytestmark = pytest.mark.django_db


def seen(workflow: Model, now: datetime = NOW) -> tuple[str, str]:
    """(status, issue)"""
    row = fresh(workflow)
    open_run = Run.objects.open().filter(workflow=row).first()
    return shown_status(row, open_run), issue(row, open_run, now)


def test_running_idle_needs_attention_and_stopped() -> None:
    script = Script(prepare=[None, AuthRequired("reconnect Gmail")])
    with deployed(script.workflow()) as workflow:
        workflow.start(NOW)
        assert seen(workflow) == ("running", "")
        work()
        assert seen(workflow) == ("idle", "")
        publish("mail", "a")
        work()
        assert seen(workflow)[0] == "needs_attention"
        last().approve("", initiator=SOMEBODY, now=NOW)
        work()
        assert seen(workflow) == ("idle", "")
        workflow.pause("audit until Friday", initiator=SOMEBODY, now=NOW)
        assert seen(workflow) == ("stopped", "Paused by a person. audit until Friday")
        fresh(workflow).stop(initiator=SOMEBODY, now=NOW)
        assert seen(workflow) == ("stopped", "Stopped: the code no longer has it. Deploy it again to go on.")


ISSUES: list[tuple[str, BaseException, str, str]] = [
    ("prepare", Transient("rate limit"), "running", "Rate limit. Tries again in 10 s."),
    (
        "prepare",
        AuthRequired("reconnect Gmail, then approve."),
        "needs_attention",
        "Reconnect Gmail, then approve. Waiting for an operator to approve or reject it.",
    ),
    (
        "apply",
        Indeterminate("the sheet did not answer"),
        "needs_attention",
        "The sheet did not answer. Waiting for an operator to say whether it happened.",
    ),
    (
        "next",
        ValueError("bad input"),
        "needs_attention",
        "ValueError: bad input. Waiting for other code of Sort, or for an operator to retry it.",
    ),
    (
        "prepare",
        Internal("the connector is broken"),
        "needs_attention",
        "The connector is broken. "
        "Waiting for somebody who maintains JIM or the connector to mend and retry it.",
    ),
]


class TestIssueDescription:
    """What it waits for, and who can resolve it."""

    @pytest.mark.parametrize(
        ("place", "trouble", "status", "sentence"), ISSUES, ids=[repr(row[1]) for row in ISSUES]
    )
    def test_a_sentence_for_each(
        self, place: str, trouble: BaseException, status: str, sentence: str
    ) -> None:
        with deployed(Script(**{place: [trouble]}).workflow()) as workflow:
            publish("mail", "a")
            work()
            assert seen(workflow) == (status, sentence)

    @pytest.mark.parametrize(
        ("stop", "error", "sentence"),
        [
            (
                Stop(Status.PAUSED_TRANSIENT, None, Tries(transient=6)),
                "rate limit",
                "Rate limit. Tried 6 times; waiting for an operator to retry it.",
            ),
            (
                Stop(Status.FAILED_INTERNAL, None, Tries(crashes=3)),
                "worker lost: crash loop, lost 3 times",
                "Worker lost: crash loop, lost 3 times. "
                "Waiting for somebody to find out why its worker dies, and to retry it.",
            ),
        ],
        ids=["all tries are spent", "its worker died again and again"],
    )
    def test_when_it_does_not_go_on_by_itself_any_more(self, stop: Stop, error: str, sentence: str) -> None:
        with deployed(Script().workflow()) as workflow:
            run = begin(workflow)
            run.stop(stop, error, now=NOW)
            assert seen(workflow) == ("needs_attention", sentence)

    def test_when_nobody_could_tell_whether_it_happened(self) -> None:
        script = Script(apply=[Indeterminate("no answer")], verdicts=[retry])
        with deployed(script.workflow()) as workflow:
            publish("mail", "a")
            work()
            Run.objects.update(due_at=None)
            assert seen(workflow) == (
                "needs_attention",
                "Nobody can tell yet whether it happened. "
                "Waiting for an operator to say whether it happened.",
            )

    def test_it_is_a_sentence_whatever_was_raised(self) -> None:
        with deployed(Script(prepare=[ValueError("x" * 10_000)]).workflow()) as workflow:
            work()
            told = seen(workflow)[1]
            assert told.startswith("ValueError: xxx")
            assert len(told) < 400


SCHEDULES: list[tuple[list[dict[str, str]], str]] = [
    ([{"every": "5m"}], "Every 5 minutes"),
    ([{"cron": "0 9 * * *"}], "At 09:00 every day, UTC"),
    ([{"every": "5m"}, {"every": "1h"}, {"every": "5m"}], "Every 5 minutes; Every hour"),
]


@pytest.mark.parametrize(("schedules", "words"), SCHEDULES, ids=[row[1] for row in SCHEDULES])
def test_the_schedule(schedules: list[dict[str, str]], words: str) -> None:
    producers = [
        type(f"Poll{number}", (Producer,), {**given, "produce": lambda self, ctx: None})
        for number, given in enumerate(schedules)
    ]
    with deployed(type("Mailbox", (Workflow,), {"slug": "m", "title": "M", "producers": producers})):
        assert schedule_words(list(Handler.objects.all())) == words


def test_the_schedule_of_consumers_only() -> None:
    with deployed(Script().workflow()):
        assert schedule_words(list(Handler.objects.all())) == "Runs when an event comes"


class TestRecentActivity:
    def test_what_was_taken_and_given(self) -> None:
        with deployed(Script().workflow(reserving=3)):
            publish("mail", "a", "b", "c")
            work()
            assert summaries() == [
                "Consumed 3 events → published 3 events to rows",
                "Found nothing to do",
            ]

    def test_what_the_handler_says_itself(self) -> None:
        class Sheet(Consumer):
            subscribe = ["mail"]

            def prepare(self, ctx: PrepareContext) -> Prepared:
                found = ctx.peek("mail")
                return Prepared(reserve=found, title=f"Processed {len(found)} emails → added to spreadsheet")

        class Sheets(Workflow):
            slug, title, topics, consumers = "sheets", "Sheets", {"mail": ""}, [Sheet]

        with deployed(Sheets):
            publish("mail", "a", "b", "c")
            work()
            assert summaries()[0] == "Processed 3 emails → added to spreadsheet"

    def test_what_was_skipped(self) -> None:
        with deployed(Script(apply=[Indeterminate("no answer")]).workflow()):
            publish("mail", "a")
            work()
            last().skip("", initiator=SOMEBODY, now=NOW)
            work()
            assert summaries()[0] == "Skipped 1 event → published 1 event to rows"

    def test_a_producer_and_a_consumer_of_nothing(self) -> None:
        class Poll(Producer):
            every = "5m"
            publishes = ["mail", "post"]

            def produce(self, ctx: ProduceContext) -> None:
                ctx.publish("post", "a")
                ctx.publish("mail", "b")
                ctx.publish("mail", "c")

        class Follow(Consumer):
            subscribe = ["mail"]
            publishes = ["post"]

            def prepare(self, ctx: PrepareContext) -> None:
                return None

            def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
                if ctx.now > NOW:
                    ctx.publish("post", f"at {ctx.now}")

        class Both(Workflow):
            slug, title, topics, producers, consumers = "b", "B", {"mail": "", "post": ""}, [Poll], [Follow]

        with deployed(Both):
            work()
            assert summaries() == [
                "Found nothing to do",
                "Published 2 events to mail → published 1 event to post",
                "Found nothing to do",
            ]
            publish("mail", "d")
            work(now=NOW + seconds(1))
            assert summaries()[-1] == "Published 1 event to post"


def summaries() -> list[str]:
    return list(Run.objects.filter(status="committed").order_by("pk").values_list("summary", flat=True))
