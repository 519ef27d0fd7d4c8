"""Phase reset rules: from the start before the mutation was applied, only forward after it."""

from __future__ import annotations

import pytest

from tests.base import NOW
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, events, publish, work
from tests.workflows.scripted import Script, SortMail, chain, last
from workflows import Indeterminate, Mutation, Prepared, Transient
from workflows.contexts import MutateContext
from workflows.definition import applied, failed
from workflows.failures import Status, Stop, Tries
from workflows.models import Event

pytestmark = pytest.mark.django_db

AFRESH = ["prepare", "mutate", "apply", "after", "next"]
# Where it stops, the phase it stops in, where its next attempt begins, and what is called again.
RESETS: list[tuple[str, str, str, list[str]]] = [
    ("prepare", "preparing", "preparing", AFRESH),
    ("mutate", "prepared", "preparing", AFRESH),
    ("apply", "mutating", "preparing", AFRESH),
    ("after", "mutated", "emitting", ["next"]),
    ("next", "emitting", "emitting", ["next"]),
]


@pytest.mark.parametrize(("place", "phase", "beginning", "again"), RESETS, ids=[row[0] for row in RESETS])
def test_the_table(place: str, phase: str, beginning: str, again: list[str]) -> None:
    """Before the mutation nothing is copied and events are released; after it both go over to the next."""
    script = Script(**{place: [Transient("rate limit")]})
    with deployed(script.workflow()) as workflow:
        publish("mail", "a")
        work()
        assert chain() == [(phase, "paused:transient")]
        first, following = last(), workflow.start(minutes(1))
        assert following is not None
        assert (following.retry_of, following.phase) == (first, beginning)
        kept = following.prepare_result, following.mutation_result, following.effect, following.mutation_key
        event = Event.objects.get(topic__slug="mail")
        if beginning == "preparing":
            assert kept == (None, None, "", None)
            attempt = 1 if place == "prepare" else 2
            assert (event.status, event.reserved_by, event.attempt) == ("pending", None, attempt)
        else:
            assert kept == (first.prepare_result, {"row": 1}, "applied", first.mutation_key)
            assert (event.status, event.reserved_by, event.attempt) == ("reserved", following, 1)
        script.calls.clear()
        work(now=minutes(1))
        assert script.calls[: len(again)] == again
        assert script.told[-2] == Mutation("applied", {"row": len(script.keys)})
        assert len(script.keys) == (2 if place == "apply" else 1)
        assert events("mail") == {"a": "consumed"}


class TestInFlight:
    """Nobody knows whether it happened: it is asked about, never repeated blindly."""

    def test_the_next_attempt_asks(self) -> None:
        script = Script(apply=[Indeterminate("no answer")], verdicts=[applied({"row": 7})])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            assert script.calls[:5] == ["prepare", "mutate", "apply", "reconcile", "next"]
            assert script.told[0] == Mutation("applied", {"row": 7})
            assert script.asked == script.keys

    def test_it_prepares_afresh_once_it_is_known_that_it_did_not_happen(self) -> None:
        script = Script(apply=[Indeterminate("no answer")], verdicts=[failed])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            work(now=minutes(1))
            assert script.calls[3:8] == ["reconcile", "prepare", "mutate", "apply", "after"]
            assert len(set(script.keys)) == 2
            assert events("mail") == {"a": "consumed"}


def test_a_result_that_cannot_be_kept_leaves_the_mutation_applied() -> None:
    def unkeepable(self: SortMail, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(object)

    with deployed(Script().workflow(mutate=unkeepable)):
        publish("mail", "a")
        work()
        run = last()
        assert (run.phase, run.status, run.effect) == ("mutated", "failed:logic", "applied")
        assert "cannot be stored as JSON" in run.error


def test_a_chain_keeps_count_of_its_tries() -> None:
    with deployed(Script().workflow()) as workflow:
        run = begin(workflow)
        run.stop(Stop(Status.PAUSED_TRANSIENT, NOW, Tries(1, 2, 3, 4)), "?", now=NOW)
        following = begin(workflow)
        assert following.tries == Tries(1, 2, 3, 4)
