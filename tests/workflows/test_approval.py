"""What a person said yes to is what had been prepared, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from execution.models import Job
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, seconds
from tests.workflows.base import deployed, events, publish, runs, work
from workflows import Consumer, Mutation, PermissionRequired, Prepared, Transient, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext
from workflows.models import Run

pytestmark = pytest.mark.django_db
sent: list[Any] = []
trouble: list[Exception] = []


def send(what: Any, key: str) -> None:
    if trouble:
        raise trouble.pop()
    sent.append((what, key))


class Send(Consumer):
    subscribe = ["letters"]

    def prepare(self, ctx: PrepareContext) -> Prepared:
        letters = ctx.peek("letters")[:1]
        return Prepared(reserve=letters, data=[letter.message_id for letter in letters])

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        if not ctx.approved:
            raise PermissionRequired(f"Somebody has to allow that {prepared.data} is sent")
        ctx.apply(send, prepared.data, key=ctx.idempotency_key)


class Post(Workflow):
    slug = "post"
    title = "Post"
    topics = {"letters": "Letters"}
    consumers = [Send]


@pytest.fixture
def stuck() -> Any:
    sent.clear()
    trouble.clear()
    with deployed(Post):
        work()
        publish("letters", "a")
        work()
        yield Run.objects.stuck().get()


def test_approved_it_goes_on_with_what_it_had_prepared(stuck: Run) -> None:
    publish("letters", "0", "b")
    stuck.approve("fine", initiator=SOMEBODY, now=NOW)
    assert work()[0] == "Send"
    following = Run.objects.get(retry_of=stuck)
    assert sent == [(["a"], str(following.key))]
    assert (following.phase, following.mutation_key) == ("committed", following.key)
    assert events("letters")["a"] == "consumed"


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_yes_is_for_that_attempt_alone(stuck: Run, by_hand: bool) -> None:
    trouble.append(Transient("too many letters"))
    stuck.approve("fine", initiator=SOMEBODY, now=NOW)
    work()
    assert runs()[-1] == ("Send", "mutating", "paused:transient")
    later = NOW + seconds(1 if by_hand else 10)
    if by_hand:
        Run.objects.stuck().get().retry("", initiator=SOMEBODY, now=later)
    work(now=later)
    assert runs()[-1] == ("Send", "prepared", "paused:approval")
    assert sent == []


class AskTwice(Send):
    def prepare(self, ctx: PrepareContext) -> Prepared:
        if not ctx.approved:
            raise PermissionRequired("Somebody has to allow that letters are read")
        return super().prepare(ctx)


class Diplomatic(Workflow):
    slug = "diplomatic"
    title = "Diplomatic post"
    topics = {"letters": "Letters"}
    consumers = [AskTwice]


def test_a_yes_to_one_phase_is_none_to_the_next() -> None:
    sent.clear()
    with deployed(Diplomatic):
        publish("letters", "a")
        work()
        Run.objects.stuck().get().approve("read them", initiator=SOMEBODY, now=NOW)
        work()
        assert runs()[-1] == ("AskTwice", "prepared", "paused:approval")
        assert sent == []
        Run.objects.stuck().get().approve("send it", initiator=SOMEBODY, now=NOW)
        work()
        assert [what for what, _ in sent] == [["a"]]


class AskAfterwards(Consumer):
    """Changes nothing outside, or nothing this time: only its announcement needs a yes."""

    subscribe = ["letters"]
    reserving = 1

    def prepare(self, ctx: PrepareContext) -> Prepared:
        return Prepared(reserve=ctx.peek("letters")[: self.reserving])

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        if ctx.state is None and not ctx.approved:
            raise PermissionRequired("Somebody has to allow that it is announced")
        return {"announced": True}


@pytest.mark.parametrize("reserving", [0, 1])
def test_a_yes_to_what_comes_after_no_mutation_goes_on_there(reserving: int) -> None:
    consumer = type("Announce", (AskAfterwards,), {"reserving": reserving})
    with deployed(type("Post", (Post,), {"consumers": [consumer]})):
        publish("letters", "a")
        work()
        assert runs() == [("Announce", "emitting", "paused:approval")]
        Run.objects.stuck().get().approve("tell them", initiator=SOMEBODY, now=NOW)
        work()
        assert runs()[1] == ("Announce", "committed", "committed")
        assert events("letters") == {"a": "consumed" if reserving else "pending"}


def test_its_job_is_not_retried_by_hand(stuck: Run) -> None:
    job = Job.find(stuck.key)
    assert job is not None
    with pytest.raises(Refused, match="what started it decides"):
        job.retry(initiator=SOMEBODY, now=NOW)
