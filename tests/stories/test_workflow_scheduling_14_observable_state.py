"""Observable state: what users see of a workflow, in words, without handlers and phases."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.base import NOW, SOMEBODY, fresh, seconds
from tests.workflows.base import begin, deployed, publish, work
from tests.workflows.scripted import Script, last
from workflows import AuthRequired, Consumer, Indeterminate, Mutation, Prepared, Producer, Workflow
from workflows.contexts import NextContext, PrepareContext, ProduceContext
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


def test_running_idle_needs_attention_paused_and_stopped() -> None:
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
        assert seen(workflow) == ("paused", "Paused by an operator. audit until Friday")
        fresh(workflow).stop(initiator=SOMEBODY, now=NOW)
        assert seen(workflow) == (
            "stopped",
            "Stopped: the workflow was removed from the code. To continue, add it again and deploy.",
        )


# How it stopped for good, the error, and what follows that: what it waits for, and who can resolve it.
ISSUES = [
    (Status.PAUSED_TRANSIENT, Tries(6), "rate limit", "Failed 6 times. An operator must retry the run."),
    (
        Status.PAUSED_RECONCILIATION,
        Tries(),
        "the sheet did not answer",
        "Check whether the mutation happened, then mark it as applied or not applied.",
    ),
    (
        Status.FAILED_LOGIC,
        Tries(),
        "ValueError: bad input",
        "Fix and deploy the handler Sort, then restart the scheduler and workers. Or retry without a fix.",
    ),
    (
        Status.FAILED_INTERNAL,
        Tries(),
        "the connector is broken",
        "Fix the fault in JIM or the connector, then retry the run.",
    ),
    (
        Status.FAILED_INTERNAL,
        Tries(crashes=3),
        "worker lost: crash loop, 3 workers were lost",
        "Find out why the workers were lost, then retry the run.",
    ),
]


@pytest.mark.parametrize(("status", "tries", "error", "then"), ISSUES, ids=[row[2] for row in ISSUES])
def test_a_sentence_for_each(status: Status, tries: Tries, error: str, then: str) -> None:
    with deployed(Script().workflow()) as workflow:
        begin(workflow).stop(Stop(status, None, tries), error, now=NOW)
        sentence = f"{error[0].upper()}{error[1:]}. {then}"
        assert seen(workflow) == ("needs_attention", sentence)


def test_it_is_a_sentence_whatever_was_raised() -> None:
    with deployed(Script(prepare=[ValueError("x" * 10_000)]).workflow()) as workflow:
        work()
        told = seen(workflow)[1]
        assert told.startswith("ValueError: xxx")
        assert len(told) < 400


SCHEDULES: list[tuple[list[dict[str, str]], str]] = [
    ([], "Runs when an event is published"),
    ([{"cron": "0 9 * * *"}], "At 09:00 every day, UTC"),
    ([{"every": "5m"}, {"every": "1h"}, {"every": "5m"}], "Every 5 minutes; Every hour"),
]


@pytest.mark.parametrize(("schedules", "words"), SCHEDULES, ids=[row[1] for row in SCHEDULES])
def test_the_schedule(schedules: list[dict[str, str]], words: str) -> None:
    producers = [
        type(f"Poll{number}", (Producer,), {**given, "produce": lambda self, ctx: None})
        for number, given in enumerate(schedules)
    ]
    mailbox = type("Mailbox", (Script().workflow(),), {"slug": "m", "title": "M", "producers": producers})
    with deployed(mailbox):
        assert schedule_words(list(Handler.objects.all())) == words


class TestRecentActivity:
    def test_what_was_taken_and_given_or_skipped(self) -> None:
        with deployed(Script(apply=[None, Indeterminate("no answer")]).workflow(reserving=3)):
            publish("mail", "a", "b", "c")
            work()
            publish("mail", "d")
            work()
            last().skip("", initiator=SOMEBODY, now=NOW)
            work()
            assert summaries() == [
                "Consumed 3 events → published 3 events to rows",
                "Found nothing to do",
                "Skipped 1 event → published 1 event to rows",
                "Found nothing to do",
            ]

    def test_what_the_handler_says_itself_and_what_a_producer_publishes(self) -> None:
        class Poll(Producer):
            every = "5m"
            publishes = ["mail", "post"]

            def produce(self, ctx: ProduceContext) -> None:
                ctx.publish("post", "a")
                ctx.publish("mail", "b")
                ctx.publish("mail", "c")

        class Sheet(Consumer):
            subscribe = ["mail"]
            publishes = ["post"]

            def prepare(self, ctx: PrepareContext) -> Prepared | None:
                found = ctx.peek("mail")
                return Prepared(reserve=found, title=f"Processed {len(found)} emails") if found else None

            def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
                if not prepared.reserve and ctx.now > NOW:
                    ctx.publish("post", f"at {ctx.now}")

        class Both(Workflow):
            slug, title, topics, producers, consumers = "b", "B", {"mail": "", "post": ""}, [Poll], [Sheet]

        with deployed(Both):
            work()
            publish("mail", "d")
            work(now=NOW + seconds(1))
        assert summaries() == [
            "Found nothing to do",
            "Published 2 events to mail → published 1 event to post",
            "Processed 2 emails",
            "Found nothing to do",
            "Processed 1 emails",
            "Published 1 event to post",
        ]


def summaries() -> list[str]:
    return list(Run.objects.filter(status="committed").order_by("pk").values_list("summary", flat=True))
