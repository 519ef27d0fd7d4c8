"""How a workflow is written in code, and what is told to whoever wrote it wrong."""

from __future__ import annotations

from typing import Any

import pytest

from workflows import Consumer, Prepared, Producer, Workflow
from workflows.contexts import PrepareContext, ProduceContext
from workflows.definition import Definitions
from workflows.errors import DefinitionError


class Poll(Producer):
    every = "5m"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        return None


class Read(Consumer):
    subscribe = ["mail"]

    def prepare(self, ctx: PrepareContext) -> Prepared | None:
        return None


class Inbox(Workflow):
    slug = "inbox"
    title = "Inbox"
    topics = {"mail": "Mail"}
    producers = [Poll]
    consumers = [Read]


def inbox(**fields: Any) -> type[Workflow]:
    return type("Inbox", (Inbox,), fields)


def poll(**fields: Any) -> type[Workflow]:
    return inbox(producers=[type("Poll", (Poll,), fields)])


def read(**fields: Any) -> type[Workflow]:
    return inbox(consumers=[type("Read", (Read,), fields)])


def bare(**fields: Any) -> type[Workflow]:
    return type("Inbox", (Workflow,), {"producers": [Poll], **fields})


WRONG: list[tuple[type[Workflow], str]] = [
    (bare(title="Inbox"), "Inbox.slug: '' is not a slug"),
    (inbox(slug="In box"), "Inbox.slug: 'In box' is not a slug; use 1 to 60 lowercase letters"),
    (inbox(slug="a" * 61), "is not a slug"),
    (bare(slug="inbox"), "Inbox.title: must be a string with 1 to 200 characters"),
    (inbox(description=None), "Inbox.description: must be a string"),
    (inbox(pool="a" * 41), "Inbox.pool: must be a string with 1 to 40 characters"),
    (inbox(topics=["mail"]), "Inbox.topics: must be a mapping of slugs to titles"),
    (inbox(topics={"Mail": "Mail"}), "Inbox.topics: 'Mail' is not a slug"),
    (inbox(topics={"mail": None}), "Inbox.topics['mail']: must be a string with 0 to 200 characters"),
    (inbox(producers=[], consumers=[]), "Inbox: a workflow needs a producer or a consumer"),
    (inbox(producers=[Poll, Poll]), "Inbox: two handlers are named Poll"),
    (inbox(producers=["Poll"]), "Inbox: 'Poll' is neither a Producer nor a Consumer"),
    (inbox(producers=[type("Other", (), {})]), "Other'> is neither a Producer nor a Consumer"),
    (poll(title="a" * 201), "Inbox.Poll.title: must be a string with 0 to 200 characters"),
    (poll(version=2), "Inbox.Poll.version: must be a string with 0 to 100 characters"),
    (poll(timeout_seconds=0), "Inbox.Poll.timeout_seconds: must be from 1 to 86,400"),
    (poll(timeout_seconds=86_401), "Inbox.Poll.timeout_seconds: must be from 1 to 86,400"),
    (poll(publishes="mail"), "Inbox.Poll.publishes: must be a list of topics"),
    (poll(publishes=["rows"]), "Inbox.Poll: no workflow declares the topic 'rows'"),
    (poll(every=""), "Poll: set exactly one of every, cron and spec; found none"),
    (poll(cron="0 9 * * *"), "Poll: set exactly one of every, cron and spec; found every and cron"),
    (poll(every="", cron="0 9 * * *", time_zone="Mars/Olympus"), "Poll: "),
    (poll(produce=Producer.produce), "Inbox.Poll: a producer needs a method produce"),
    (read(prepare=Consumer.prepare), "Inbox.Read: a consumer needs a method prepare"),
    (read(subscribe=[]), "Inbox.Read.subscribe: must be a list of at least one topic"),
    (read(subscribe="mail"), "Inbox.Read.subscribe: must be a list of at least one topic"),
    (read(subscribe=["rows"]), "Inbox.Read: no workflow declares the topic 'rows'"),
    (read(subscribe=["mail", "mail"]), "'mail' is already consumed by Inbox.Read"),
]


def refusal(*workflows: type[Workflow]) -> str:
    with pytest.raises(DefinitionError) as refused:
        Definitions.of(workflows)
    return str(refused.value)


@pytest.mark.parametrize(("workflow", "message"), WRONG, ids=[f"{at}" for at in range(len(WRONG))])
def test_what_cannot_be_deployed_names_the_place_and_the_way_out(
    workflow: type[Workflow], message: str
) -> None:
    assert message in refusal(workflow)


def other(**fields: Any) -> type[Workflow]:
    body = {"slug": "other", "title": "Other", "topics": {}, "producers": [Poll]} | fields
    return type("Other", (Workflow,), body)


TOGETHER: list[tuple[type[Workflow], str]] = [
    (other(slug="inbox"), "two workflows have the slug 'inbox'; give one of them another slug"),
    (other(topics={"mail": ""}), "topic 'mail' is declared by both Inbox and Other"),
    (other(consumers=[Read]), "Other.Read.subscribe: 'mail' is already consumed by Inbox.Read"),
]


@pytest.mark.parametrize(("second", "message"), TOGETHER, ids=[row[1][:40] for row in TOGETHER])
def test_workflows_are_checked_together(second: type[Workflow], message: str) -> None:
    assert refusal(Inbox, second).startswith(message)


def test_handlers_and_topics_are_known_and_a_workflow_may_publish_to_anothers_topic() -> None:
    known = Definitions.of([Inbox, other()])
    assert set(known.workflows) == {"inbox", "other"}
    assert known.topics == {"mail": ("Mail", "inbox")}
    assert known.handler("inbox", "Read") is Read
    assert known.handler("inbox", "Gone") is known.handler("gone", "Read") is None


@pytest.mark.parametrize("schedule", [{"cron": "*/5 * * * *"}, {"spec": {"every": ["5m"]}}])
def test_each_kind_of_schedule(schedule: dict[str, Any]) -> None:
    Definitions.of([poll(every="", **schedule)])


def test_the_version_is_that_of_the_code_unless_it_is_given() -> None:
    assert len(Poll.code_version()) == 16
    assert Poll.code_version() == Read.code_version()
    assert type("Poll", (Poll,), {"version": "7"}).code_version() == "7"  # type: ignore[attr-defined]
