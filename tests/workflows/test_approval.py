"""What a person said yes to is what had been prepared, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from execution.models import Job
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, seconds
from tests.workflows.base import deployed, events, publish, runs, work
from tests.workflows.scripted import Script, SortMail, last
from workflows import Consumer, PermissionRequired, Transient

pytestmark = pytest.mark.django_db


def asking(phase: str) -> Any:
    """This phase, for which somebody has to say yes first."""

    def ask(self: Any, ctx: Any, *given: Any) -> Any:
        if not ctx.approved:
            raise PermissionRequired(f"Somebody has to allow it: {phase}")
        return getattr(SortMail, phase)(self, ctx, *given)

    return ask


def approve() -> None:
    last().approve("fine", initiator=SOMEBODY, now=NOW)
    work()


def test_approved_it_goes_on_with_what_it_had_prepared() -> None:
    script = Script()
    with deployed(script.workflow(mutate=asking("mutate"))):
        publish("mail", "a")
        work()
        stuck, job = last(), Job.find(last().key)
        assert job is not None
        with pytest.raises(Refused, match="The workflow decides"):
            job.retry(initiator=SOMEBODY, now=NOW)
        publish("mail", "0")
        approve()
        following = stuck.retries.get()
        assert (script.keys, following.mutation_key) == ([str(following.key)], following.key)
        assert events("mail") == {"a": "consumed", "0": "reserved"}


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_yes_is_for_that_attempt_alone(by_hand: bool) -> None:
    script = Script(apply=[Transient("too many letters")])
    with deployed(script.workflow(mutate=asking("mutate"))):
        publish("mail", "a")
        work()
        approve()
        assert runs()[-1] == ("Sort", "mutating", "paused:transient")
        later = NOW + seconds(1 if by_hand else 10)
        if by_hand:
            last().retry("", initiator=SOMEBODY, now=later)
        work(now=later)
        assert runs()[-1] == ("Sort", "prepared", "paused:approval")
        assert len(script.keys) == 1


def test_a_yes_to_one_phase_is_none_to_the_next() -> None:
    script = Script()
    with deployed(script.workflow(prepare=asking("prepare"), mutate=asking("mutate"))):
        publish("mail", "a")
        work()
        approve()
        assert (runs()[-1], script.keys) == (("Sort", "prepared", "paused:approval"), [])
        approve()
        assert events("mail") == {"a": "consumed"}


@pytest.mark.parametrize("reserving", [0, 1])
def test_a_yes_to_what_comes_after_no_mutation_goes_on_there(reserving: int) -> None:
    """Nothing changes outside, or nothing this time: only the announcement needs a yes."""
    workflow = Script().workflow(reserving=reserving, mutate=Consumer.mutate, next=asking("next"))
    with deployed(workflow):
        publish("mail", "a")
        work()
        assert runs() == [("Sort", "emitting", "paused:approval")]
        approve()
        assert runs()[1] == ("Sort", "committed", "committed")
        assert events("mail") == {"a": "consumed" if reserving else "pending"}
