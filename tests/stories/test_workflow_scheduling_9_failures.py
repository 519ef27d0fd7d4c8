"""Failure classification: where it was raised and as what decides, never its words."""

from __future__ import annotations

from typing import Any

import pytest

from execution.models import WorkerTask
from execution.steps.outcome import Later, Reason, Skipped
from tests.base import NOW, SOMEBODY
from tests.timeline import minutes
from tests.workflows.base import deployed, publish, work
from tests.workflows.scripted import Killed, Script, SortMail, last
from workflows import AuthRequired, Indeterminate, Internal, Mutation, PermissionRequired, Prepared, Transient
from workflows.contexts import MutateContext, NextContext, PhaseContext, PrepareContext
from workflows.errors import Failure
from workflows.failures import Tries
from workflows.models import Run

pytestmark = pytest.mark.django_db

# Raised, where, the status, and whether it goes on by itself. Each kind: in tests/workflows/test_failures.py.
CLASSIFICATION: list[tuple[type[Exception], str, str, bool]] = [
    (Transient, "next", "paused:transient", True),
    (AuthRequired, "mutate", "paused:approval", False),
    (PermissionRequired, "after", "paused:approval", False),
    (Internal, "next", "failed:internal", False),
    (ValueError, "prepare", "failed:logic", False),
    # Nothing is in flight: there is nothing of which the outcome could be unknown.
    (Indeterminate, "after", "failed:logic", False),
]
APPLYING: list[tuple[type[BaseException], str, str]] = [
    # Raised by the applied function, the status, and what is known of the mutation.
    (Transient, "paused:transient", "failed"),
    (Indeterminate, "paused:reconciliation", "in_flight"),
    (Killed, "paused:reconciliation", "in_flight"),
]


@pytest.mark.parametrize(
    ("kind", "place", "status", "goes_on"),
    CLASSIFICATION,
    ids=[f"{row[0].__name__} {row[1]}" for row in CLASSIFICATION],
)
def test_outside_of_the_mutation(kind: type[Exception], place: str, status: str, goes_on: bool) -> None:
    with deployed(Script(**{place: [kind("permission denied")]}).workflow()):
        publish("mail", "a")
        work()
        run = last()
        assert (run.status, run.due_at is not None) == (status, goes_on)
        assert run.effect == ("applied" if place in ("after", "next") else "")
        words = "permission denied" if issubclass(kind, Failure) else f"{kind.__name__}: permission denied"
        assert (run.error, run.error_type) == (words, kind.__name__)


@pytest.mark.parametrize(("kind", "status", "effect"), APPLYING, ids=[row[0].__name__ for row in APPLYING])
def test_inside_the_mutation(kind: type[BaseException], status: str, effect: str) -> None:
    with deployed(Script(apply=[kind("it broke")]).workflow()):
        publish("mail", "a")
        work()
        run = last()
        assert (run.phase, run.status, run.effect) == ("mutating", status, effect)


def test_after_10_20_40_80_and_160_seconds_a_person_is_asked_who_gives_it_all_tries_again() -> None:
    with deployed(Script(prepare=[Transient("rate limit")] * 6).workflow()):
        publish("mail", "a")
        at, waits = NOW, []
        work()
        while (due := last().due_at) is not None:
            waits.append((due - at).total_seconds())
            at = due
            work(now=at)
        assert waits == [10, 20, 40, 80, 160]
        assert last().status == "paused:transient"
        assert work(now=minutes(24 * 60)) == []
        last().retry("the limit was raised", initiator=SOMEBODY, now=at)
        work(now=at)
        assert (last().status, last().transient) == ("committed", 0)


INTERRUPTIONS: list[tuple[str, str, str, str]] = [
    # Why it is interrupted and where; then its status, and what is said of it.
    ("timeout", "prepare", "paused:transient", "timed out after 300 s"),
    ("timeout", "apply", "paused:reconciliation", "timed out after 300 s"),
    ("timeout", "next", "paused:transient", "timed out after 300 s"),
    ("cancel", "prepare", "paused:approval", "cancelled while running"),
    ("cancel", "apply", "paused:reconciliation", "cancelled while running"),
    ("cancel", "next", "paused:approval", "cancelled while running"),
    ("drain", "prepare", "crashed", "the run's worker stopped"),
    ("drain", "apply", "crashed", "the run's worker stopped"),
    ("drain", "next", "crashed", "the run's worker stopped"),
]


@pytest.mark.parametrize(
    ("reason", "place", "status", "error"), INTERRUPTIONS, ids=[f"{row[0]} {row[1]}" for row in INTERRUPTIONS]
)
def test_interrupted(reason: Reason, place: str, status: str, error: str) -> None:
    """Its time was over, a person cancelled it, or its worker stops and leaves it to another at once."""
    script = Interrupting(reason, place)
    with deployed(script.workflow(prepare=script.prepare, mutate=script.mutate, next=script.next)):
        publish("mail", "a")
        work()
        run = Run.objects.earliest("pk")
        assert (run.status, run.error) == (status, error)
        assert run.effect == {"prepare": "", "apply": "in_flight", "next": "applied"}[place]
        assert run.tries == (Tries(transient=1) if status == "paused:transient" else Tries())
        goes_on = status == "crashed" and place != "apply"
        assert (last().status == "committed") is goes_on


class Interrupting(Script):
    """Is interrupted once, at this place."""

    def __init__(self, reason: Reason, place: str) -> None:
        super().__init__()
        self.reason: Reason | None = reason
        self.place = place

    def interrupt(self, place: str, ctx: PhaseContext) -> None:
        if place == self.place and self.reason is not None:
            ctx._step.interrupt(self.reason)
            self.reason = None
            ctx.check()

    @staticmethod
    def prepare(consumer: SortMail, ctx: PrepareContext) -> Prepared:
        consumer.script.interrupt("prepare", ctx)  # type: ignore[attr-defined]
        return SortMail.prepare(consumer, ctx)

    @staticmethod
    def mutate(consumer: SortMail, ctx: MutateContext, prepared: Prepared) -> None:
        ctx.apply(consumer.script.interrupt, "apply", ctx)  # type: ignore[attr-defined]

    @staticmethod
    def next(consumer: SortMail, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> None:
        consumer.script.interrupt("next", ctx)  # type: ignore[attr-defined]


@pytest.mark.parametrize("leaving", [SystemExit(0), Later(NOW, "later"), Skipped("not today")], ids=repr)
def test_a_handler_that_leaves_in_another_way_has_failed_like_any_other(leaving: BaseException) -> None:
    with deployed(Script(prepare=[leaving]).workflow()):
        work()
        assert last().status == "failed:logic"
        activity = last().activity()
        assert activity is not None
        assert activity.status == "failed_with_error"
        assert not WorkerTask.objects.exists()


RETURNS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"prepare": lambda self, ctx: {"reserve": []}},
        "preparing",
        "TypeError: prepare must return Prepared or None, not dict",
    ),
    ({"next": lambda self, ctx, prepared, mutation: object()}, "emitting", "cannot be stored as JSON"),
    (
        {"next": lambda self, ctx, prepared, mutation: ctx.publish("rows", "")},
        "emitting",
        "Must be a string with 1 to 200 characters",
    ),
]


@pytest.mark.parametrize(("method", "phase", "error"), RETURNS, ids=["prepared", "state", "event"])
def test_what_a_handler_returns_has_to_make_sense(method: dict[str, Any], phase: str, error: str) -> None:
    with deployed(Script().workflow(**method)):
        work()
        assert (last().phase, last().status) == (phase, "failed:logic")
        assert error in last().error


def test_a_handler_that_this_workers_code_does_not_have_is_nobodys_error_in_logic() -> None:
    """Another worker may have it, or this one once it was started anew."""
    with deployed(Script().workflow()) as workflow:
        workflow.start(NOW)
        workflow.handlers.update(name="Gone")
        work()
        assert last().status == "paused:transient"
        assert "This worker's code has no handler Gone" in last().error
