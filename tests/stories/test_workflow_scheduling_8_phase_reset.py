"""Phase reset rules: from the start before the mutation was applied, only forward after it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.base import NOW, SOMEBODY
from tests.timeline import minutes
from tests.workflows.base import deployed, events, publish, work
from tests.workflows.scripted import Killed, Script, SortMail, chain, die, last
from workflows import AuthRequired, Indeterminate, Mutation, PermissionRequired, Prepared, Transient
from workflows.contexts import MutateContext
from workflows.definition import applied, failed
from workflows.failures import Status, Stop, Tries, told
from workflows.models import Event, Run

pytestmark = pytest.mark.django_db

# Where it stops, the phase it stops in, where its next attempt begins, and what is called again.
RESETS: list[tuple[str, str, str, list[str]]] = [
    ("prepare", "preparing", "preparing", ["prepare", "mutate", "apply", "after", "next"]),
    ("mutate", "prepared", "preparing", ["prepare", "mutate", "apply", "after", "next"]),
    ("apply", "mutating", "preparing", ["prepare", "mutate", "apply", "after", "next"]),
    ("after", "mutated", "emitting", ["next"]),
    ("next", "emitting", "emitting", ["next"]),
]


@pytest.mark.parametrize(("place", "phase", "beginning", "again"), RESETS, ids=[row[0] for row in RESETS])
def test_the_table(place: str, phase: str, beginning: str, again: list[str]) -> None:
    script = Script(**{place: [Transient("rate limit")]})
    with deployed(script.workflow()) as workflow:
        publish("mail", "a")
        work()
        assert chain() == [(phase, "paused:transient")]
        following = workflow.start(minutes(1))
        assert following is not None
        assert following.phase == beginning
        script.calls.clear()
        work(now=minutes(1))
        assert script.calls[: len(again)] == again
        assert events("mail") == {"a": "consumed"}


@pytest.mark.parametrize("place", ["after", "next"])
def test_after_the_mutation_its_results_are_copied_and_it_is_not_applied_again(place: str) -> None:
    script = Script(**{place: [Transient("rate limit")]})
    with deployed(script.workflow()):
        publish("mail", "a")
        work()
        work(now=minutes(1))
        first, second = Run.objects.order_by("pk")[:2]
        assert second.prepare_result == first.prepare_result
        assert second.mutation_result == first.mutation_result == {"row": 1}
        assert second.mutation_key == first.mutation_key
        assert len(script.keys) == 1
        assert script.told[-2] == Mutation("applied", {"row": 1})


@pytest.mark.parametrize("place", ["prepare", "mutate", "apply"])
def test_before_the_mutation_nothing_is_copied(place: str) -> None:
    script = Script(**{place: [Transient("rate limit")]})
    with deployed(script.workflow()) as workflow:
        publish("mail", "a")
        work()
        following = workflow.start(minutes(1))
        assert following is not None
        assert (following.prepare_result, following.mutation_result) == (None, None)
        assert (following.effect, following.mutation_key) == ("", None)


class TestReservations:
    def test_before_the_mutation_they_are_kept_until_the_next_attempt_begins_then_released(self) -> None:
        with deployed(Script(mutate=[Transient("rate limit")]).workflow()) as workflow:
            publish("mail", "a")
            work()
            assert events("mail") == {"a": "reserved"}
            workflow.start(minutes(1))
            event = Event.objects.get(topic__slug="mail")
            assert (event.status, event.reserved_by, event.attempt) == ("pending", None, 2)

    def test_a_fresh_attempt_sees_what_has_come_meanwhile(self) -> None:
        script = Script(mutate=[Transient("rate limit")])
        with deployed(script.workflow(reserving=10)):
            publish("mail", "a")
            work()
            publish("mail", "b")
            work(now=minutes(1))
            assert (Run.objects.order_by("pk")[1].prepare_result or {})["data"] == ["a", "b"]

    @pytest.mark.parametrize("place", ["after", "next"])
    def test_after_it_they_go_over_to_the_next_attempt(self, place: str) -> None:
        with deployed(Script(**{place: [Transient("rate limit")]}).workflow()) as workflow:
            publish("mail", "a")
            work()
            following = workflow.start(minutes(1))
            event = Event.objects.get(topic__slug="mail")
            assert (event.status, event.reserved_by, event.attempt) == ("reserved", following, 1)


class TestApproval:
    """What a person approved is done as it was prepared."""

    PLACES = [
        ("prepare", "preparing", False),
        ("mutate", "prepared", True),
        ("apply", "prepared", True),
        ("after", "emitting", True),
        ("next", "emitting", True),
    ]

    @pytest.mark.parametrize(("place", "beginning", "keeps"), PLACES, ids=[row[0] for row in PLACES])
    @pytest.mark.parametrize("kind", [AuthRequired, PermissionRequired])
    def test_it_goes_on_where_it_stopped(
        self, place: str, beginning: str, keeps: bool, kind: type[Exception]
    ) -> None:
        script = Script(**{place: [kind("sign in again")]})
        with deployed(script.workflow()) as workflow:
            publish("mail", "a")
            work()
            stuck = last()
            assert (stuck.status, stuck.due_at) == ("paused:approval", None)
            stuck.approve("done", initiator=SOMEBODY, now=NOW)
            following = workflow.start(NOW)
            assert following is not None
            assert (following.phase, following.prepare_result is not None) == (beginning, keeps)
            work()
            assert events("mail") == {"a": "consumed"}
            assert len(script.keys) == (2 if place == "apply" else 1)

    def test_what_it_tries_then_is_asked_about_by_the_key_that_it_was_tried_with(self) -> None:
        trouble: list[BaseException | None] = [
            PermissionRequired("may not write"),
            Indeterminate("no answer"),
        ]
        script = Script(apply=trouble, verdicts=[applied()])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            last().approve("", initiator=SOMEBODY, now=NOW)
            work()
            assert len(script.keys) == 2
            assert script.asked == script.keys[1:]

    def test_an_approval_is_of_what_was_prepared_and_of_nothing_else(self) -> None:
        """If that attempt fails before its mutation, the next one prepares afresh, and asks again."""
        asked: list[bool] = []
        script = Script(apply=[PermissionRequired("may not write"), Transient("rate limit")])

        def asking(self: SortMail, ctx: MutateContext, prepared: Prepared) -> None:
            asked.append(ctx.approved)
            SortMail.mutate(self, ctx, prepared)

        with deployed(script.workflow(mutate=asking)):
            publish("mail", "a")
            work()
            last().approve("", initiator=SOMEBODY, now=NOW)
            work()
            work(now=minutes(1))
        assert asked == [False, True, False]


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

    @pytest.mark.parametrize("kind", [ValueError, OSError, Killed], ids=lambda kind: kind.__name__)
    def test_anything_unexpected_counts_as_that(self, kind: type[BaseException]) -> None:
        script = Script(apply=[kind("?")])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            assert chain() == [("mutating", "paused:reconciliation")]
            assert last().effect == "in_flight"

    @pytest.mark.parametrize("hidden", [Indeterminate("no answer"), Transient("rate limit"), ValueError("?")])
    def test_a_handler_cannot_hide_it(self, hidden: Exception) -> None:
        """Scripts cannot catch tool errors: what became of the mutation is not theirs to decide."""
        script = Script(apply=[hidden])

        def hiding(self: SortMail, ctx: MutateContext, prepared: Prepared) -> None:
            with suppress(Exception):
                SortMail.mutate(self, ctx, prepared)

        with deployed(script.workflow(mutate=hiding)):
            publish("mail", "a")
            work()
            expected = "paused:transient" if isinstance(hidden, Transient) else "paused:reconciliation"
            assert chain() == [("mutating", expected)]
            assert last().error == told(hidden)
            assert events("mail") == {"a": "reserved"}


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
        run = workflow.start(NOW)
        assert run is not None
        run.stop(Stop(Status.PAUSED_TRANSIENT, NOW, Tries(1, 2, 3, 4)), "?", now=NOW)
        following = workflow.start(NOW)
        assert following is not None
        assert following.tries == Tries(1, 2, 3, 4)


@pytest.mark.parametrize(("place", "beginning"), [(row[0], row[2]) for row in RESETS])
def test_a_run_of_which_the_worker_was_lost_begins_by_the_same_rules(place: str, beginning: str) -> None:
    """But for the mutation that may have happened."""
    script = Script(**{place: [Killed()]})
    with deployed(script.workflow()) as workflow:
        publish("mail", "a")
        die().crash("worker lost", now=NOW)
        following = workflow.start(NOW)
        assert following is not None
        assert following.phase == ("mutating" if place == "apply" else beginning)
