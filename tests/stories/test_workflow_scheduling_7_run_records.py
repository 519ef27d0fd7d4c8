"""Run records: one per attempt, with a status that is apart from its phase, and a checkpoint per phase."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
from django.db import IntegrityError, transaction
from django.forms.models import model_to_dict

from activities.models import Activity
from tests.base import NOW, fresh
from tests.timeline import minutes
from tests.workflows.base import begin, deployed, events, publish, runs, work
from tests.workflows.scripted import Killed, Script, die
from workflows import Consumer, Mutation, Prepared, Transient, Workflow
from workflows.contexts import MutateContext, NextContext, PrepareContext
from workflows.errors import Superseded
from workflows.failures import PHASES, Status, Stop, Tries
from workflows.models import Event, Handler, Run
from workflows.models.commit import Commit
from workflows.models.event import Publication

pytestmark = pytest.mark.django_db


class TestRunRecords:
    def test_each_attempt_is_a_record_linked_to_the_one_before_which_stays_as_it_was(self) -> None:
        script = Script(prepare=[Transient("rate limit"), Transient("rate limit")])
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            before = model_to_dict(Run.objects.get())
            for minute in (1, 2):
                work(now=minutes(minute))
            first, second, third, *_ = Run.objects.order_by("pk")
            assert third.chain() == [first, second, third]
        after = model_to_dict(first)
        changed = {name for name, value in before.items() if after[name] != value}
        assert changed == {"settled_at", "due_at", "updated_at"}

    def test_it_keeps_what_happened_and_is_the_attempt_of_a_task_whose_activity_tells_it(self) -> None:
        script = Script(prepare=[Transient("rate limit")])
        with deployed(script.workflow(version="7")):
            publish("mail", "a")
            work()
            run = Run.objects.get()
            assert (run.workflow.slug, run.handler.name, run.handler.kind) == ("inbox", "Sort", "consumer")
            assert (run.error, run.error_type, run.code_version) == ("rate limit", "Transient", "7")
            assert run.created_at == run.updated_at == run.finished_at == NOW
            activity = Activity.objects.get(task_key=run.key)
        assert activity == run.activity()
        assert (activity.status, activity.error) == ("failed_with_error", "Transient: rate limit")


@pytest.fixture
def run() -> Iterator[Run]:
    """One that has just begun."""
    with deployed(Script().workflow()) as workflow:
        publish("mail", "a")
        begun = begin(workflow)
        assert (begun.phase, begun.status) == ("preparing", "active")
        yield begun


def put(run: Run, **values: Any) -> Run:
    Run.objects.filter(pk=run.pk).update(**values)
    return fresh(run)


def test_a_run_can_be_paused_at_any_phase_which_stays(run: Run) -> None:
    ways = [status for status in Status if status not in (Status.ACTIVE, Status.COMMITTED)]
    for phase, status in product(PHASES[:-1], ways):
        put(run, phase=phase, status="active")
        assert run.stop(Stop(status, None, Tries()), "why", now=NOW)
        assert (fresh(run).phase, fresh(run).status) == (phase, status)


class TestPhases:
    def test_they_only_go_forward(self, run: Run) -> None:
        for before, target in product(PHASES, PHASES[1:]):
            stale = put(run, phase=before)
            if PHASES.index(before) < PHASES.index(target):
                stale.reach(target, now=NOW)
                assert fresh(run).phase == target
            else:
                with pytest.raises(Superseded):
                    stale.reach(target, now=NOW)
                assert fresh(run).phase == before

    def test_a_run_that_is_no_longer_active_reaches_nothing(self, run: Run) -> None:
        stale = Run.objects.get(pk=run.pk)
        run.crash("worker lost", now=NOW)
        with pytest.raises(Superseded):
            stale.reach_mutating(now=NOW)
        with pytest.raises(Superseded):
            stale.commit(Commit({"done": 9}, [Publication.of("rows", "x")], ""), now=NOW)
        assert events("rows") == {}
        assert Handler.objects.get().state is None


class TestCheckpoints:
    """What is persisted with each transition: a worker that dies right after it leaves just that behind."""

    def test_prepared_has_the_prepare_result_and_the_reservations(self) -> None:
        with deployed(Script(mutate=[Killed()]).workflow()):
            publish("mail", "a")
            run = die()
            assert (run.phase, run.effect) == ("prepared", "")
            assert run.prepare_result == {
                "reserve": [Event.objects.get().pk],
                "data": ["a"],
                "wake_at": None,
                "title": "",
            }
            assert list(run.reserved.values_list("message_id", "status")) == [("a", "reserved")]

    @pytest.mark.parametrize(
        ("place", "phase", "effect", "result"),
        [
            ("apply", "mutating", "in_flight", None),
            ("after", "mutated", "applied", {"row": 1}),
            ("next", "emitting", "applied", {"row": 1}),
        ],
    )
    def test_the_mutation_has_its_key_before_the_call_and_its_result_atomically(
        self, place: str, phase: str, effect: str, result: Any
    ) -> None:
        """Nothing is published yet."""
        script = Script(**{place: [Killed()]})
        with deployed(script.workflow()):
            publish("mail", "a")
            run = die()
            assert (run.phase, run.effect, run.mutation_result) == (phase, effect, result)
            assert script.keys == [str(run.mutation_key)] == [str(run.key)]
            assert (events("mail"), events("rows")) == ({"a": "reserved"}, {})
            assert Handler.objects.get().state is None

    def test_committed_has_the_state_the_marks_and_the_publications_all_at_once(self) -> None:
        script = Script()
        with deployed(script.workflow()):
            publish("mail", "a")
            work()
            assert runs()[0] == ("Sort", "committed", "committed")
            assert (events("mail"), events("rows")) == ({"a": "consumed"}, {"a": "pending"})
            assert Handler.objects.get().state == {"done": 1}
            cause, event = Event.objects.order_by("pk")
            assert (event.created_by, event.caused_by) == (Run.objects.order_by("pk")[0], [cause.pk])
        assert script.told == [Mutation("applied", {"row": 1}), Mutation("none")]
        assert script.calls == ["prepare", "mutate", "apply", "after", "next", "prepare", "next"]

    def test_a_commit_that_fails_half_way_leaves_nothing(self, run: Run) -> None:
        with (
            patch("workflows.models.run.move_handler", side_effect=Killed),
            pytest.raises(Killed),
            transaction.atomic(),
        ):
            run.commit(Commit({"done": 1}, [Publication.of("rows", "a")], ""), now=NOW)
        assert events("rows") == {}
        assert fresh(run).status == "active"


class TestPhaseRights:
    """Prepare reads and peeks, mutate changes one thing, next publishes; all else is an error in logic."""

    class Rights(Consumer):
        subscribe = ["mail"]
        publishes = ["rows"]
        offence: tuple[str, Any] = ("", None)

        def attempt(self, phase: str, ctx: Any) -> None:
            if self.offence[0] == phase:
                self.offence[1](ctx)

        def prepare(self, ctx: PrepareContext) -> Prepared:
            self.attempt("prepare", ctx)
            return Prepared(reserve=ctx.peek("mail"))

        def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            self.attempt("mutate", ctx)

        def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
            self.attempt("next", ctx)

    def inbox(self, consumer: type[Consumer]) -> type[Workflow]:
        topics = {"mail": "", "rows": ""}
        body = {"slug": "inbox", "title": "Inbox", "topics": topics, "consumers": [consumer]}
        return type("Inbox", (Workflow,), body)

    OFFENCES = [
        ("prepare", lambda ctx: ctx.apply(print), "ctx.apply cannot be called in prepare"),
        ("prepare", lambda ctx: ctx.publish("rows", "x"), "ctx.publish cannot be called in prepare"),
        ("prepare", lambda ctx: ctx.peek("rows"), "Rights cannot peek at 'rows'"),
        ("mutate", lambda ctx: ctx.peek("mail"), "ctx.peek cannot be called in mutate"),
        ("mutate", lambda ctx: ctx.publish("rows", "x"), "ctx.publish cannot be called in mutate"),
        ("next", lambda ctx: ctx.peek("mail"), "ctx.peek cannot be called in next; call it in prepare"),
        ("next", lambda ctx: ctx.apply(print), "ctx.apply cannot be called in next; call it in mutate"),
        ("next", lambda ctx: ctx.publish("mail", "x"), "Rights cannot publish to 'mail'"),
    ]

    @pytest.mark.parametrize(("phase", "offence", "error"), OFFENCES, ids=[row[2] for row in OFFENCES])
    def test_what_belongs_to_another_phase_is_refused(self, phase: str, offence: Any, error: str) -> None:
        rights = type("Rights", (self.Rights,), {"offence": (phase, offence)})
        with deployed(self.inbox(rights)):
            publish("mail", "a")
            work()
            run = Run.objects.get()
            assert (run.status, run.error_type) == ("failed:logic", "PhaseError")
            assert run.error.startswith(error)
            assert events("rows") == {}

    def test_mutate_may_apply_one_mutation_only(self) -> None:
        applied: list[int] = []

        class Greedy(self.Rights):  # type: ignore[name-defined]
            def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
                ctx.apply(applied.append, 1)
                ctx.apply(applied.append, 2)

        with deployed(self.inbox(Greedy)):
            publish("mail", "a")
            work()
            run = Run.objects.get()
            assert (run.phase, run.status, run.effect) == ("mutated", "failed:logic", "applied")
            assert applied == [1]


def test_at_most_one_run_of_a_workflow_is_open_says_the_database(run: Run) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.begin(run.handler, now=NOW)
