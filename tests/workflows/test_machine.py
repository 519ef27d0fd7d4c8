"""Whatever happens, in whatever order: the invariants hold after every step, and what is healed ends well.

Workers are lost between any two commits, go on though they were given up, and are interrupted; handlers fail
in every way in every phase; people and deployments come in between.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from database import clock
from execution.loops import scheduler
from execution.loops.recorder import StepOutput
from execution.loops.scheduler import tick
from execution.models import Job, Worker, WorkerTask
from execution.models.attempt import ClaimedTask, Finish
from execution.steps.context import Context
from execution.steps.outcome import Outcome
from execution.steps.performing import perform
from schedules.models import Refused
from tests.base import NOW, SOMEBODY, claim, make_worker, nursery, seconds
from tests.workflows.base import defined, deploy_all, publish
from tests.workflows.invariants import Witness, effects, note_effect, unfinished, violations
from tests.workflows.scripted import Killed
from workflows import (
    AuthRequired,
    Consumer,
    Indeterminate,
    Internal,
    Mutation,
    PermissionRequired,
    Prepared,
    Producer,
    Transient,
    Workflow,
)
from workflows.contexts import MutateContext, NextContext, PrepareContext, ProduceContext, ReconcileContext
from workflows.definition import applied, failed
from workflows.models import Event, Run
from workflows.models import Workflow as Row
from workflows.performing import Performance
from workflows.scheduling import recover, start_due

pytestmark = pytest.mark.django_db
STEPS = 40
# The first two do nothing unusual.
EXAMPLES = [3, pytest.param(12, marks=pytest.mark.long)]
FAILURES = (Transient, AuthRequired, PermissionRequired, Indeterminate, Internal, ValueError, SystemExit)
# No handler may say so of what did.
IT_DID_NOT_HAPPEN = (Transient, AuthRequired, PermissionRequired)
# Where a handler may fail. `before` and `after`: in the call that makes the mutation.
PLACES = ("produce", "prepare", "mutate", "before", "after", "next", "reconcile")
EITHER, REASONS = st.booleans(), st.sampled_from(["cancel", "timeout", "drain"])
# Before the checkpoint of this number, or in the call (0).
AT = st.integers(0, 6)


@dataclass
class Script:
    """What befalls the task that is performed next."""

    fails_at: str = ""
    failure: Callable[[str], BaseException] = ValueError
    strikes_at: int = -1
    strike: Callable[[], object] = field(default=lambda: None)
    swallows: bool = False
    returns: Any = "the result"
    wake_in: Any = None
    reserve: int = 2

    def reach(self, place: str) -> None:
        if place == self.fails_at:
            self.fails_at = ""
            raise self.failure(f"it failed: {place}")

    def hit(self, number: int) -> None:
        if number == self.strikes_at:
            self.strikes_at = -1
            self.strike()


script = Script()
ledger = Path()


class Poll(Producer):
    every = "5m"
    publishes = ["mail"]

    def produce(self, ctx: ProduceContext) -> Any:
        script.reach("produce")
        count = (ctx.state or 0) + 1
        ctx.publish("mail", f"poll {count}")
        return count


class Careful(Consumer):
    def prepare(self, ctx: PrepareContext) -> Prepared:
        wake_at = ctx.now + script.wake_in if isinstance(script.wake_in, timedelta) else script.wake_in
        taken = [event for topic in self.subscribe for event in ctx.peek(topic)][: script.reserve]
        script.reach("prepare")
        return Prepared(taken, data=[event.message_id for event in taken], wake_at=wake_at)

    def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        assert prepared.data == [event.message_id for event in prepared.reserve]
        own = script
        own.reach("mutate")
        try:
            ctx.apply(change, own, ctx)
        except Exception:
            if not own.swallows:
                raise

    def next(self, ctx: NextContext, prepared: Prepared, mutation: Mutation) -> Any:
        script.reach("next")
        for topic in self.publishes:
            for event in prepared.reserve if mutation.outcome == "applied" else ():
                ctx.publish(topic, event.message_id)
        return (ctx.state or 0) + 1


def change(own: Script, ctx: MutateContext) -> Any:
    key = ctx.idempotency_key
    own.hit(0)
    own.reach("before")
    note_effect(ledger, key, None if isinstance(own.returns, set) else own.returns)
    own.reach("after")
    return own.returns


class Sort(Careful):
    subscribe = ["mail", "post"]
    publishes = ["rows"]

    def reconcile(self, ctx: ReconcileContext, prepared: Prepared) -> Any:
        script.reach("reconcile")
        known = effects(ledger).get(ctx.idempotency_key)
        return applied(known[0]) if known else failed


class File(Careful):
    """A person has to say whether it happened."""

    subscribe = ["rows"]


class Office(Workflow):
    slug, title = "office", "Office"
    topics = {"mail": "Mail", "post": "Post", "rows": "Rows"}
    producers = [Poll]
    consumers = [Sort, File]


class Machine(RuleBasedStateMachine):
    context: Context
    worker: Worker

    def __init__(self) -> None:
        super().__init__()
        global script, ledger
        script = Script()
        self.folder = tempfile.TemporaryDirectory()
        ledger = Path(self.folder.name) / "ledger"
        self.now, self.numbers, self.version = NOW, itertools.count(1), 0
        self.witness = Witness()
        self.contexts: list[Any] = [
            self.folder,
            transaction.atomic(),
            patch.object(clock, "now", lambda: self.now),
            # There are no schedules here.
            patch.object(scheduler, "SETTLING", [start_due]),
            patch.object(scheduler, "RECOVERING", [recover]),
            patch.object(Performance, "_checkpoint", self._checkpoint(Performance._checkpoint)),
            patch.object(Performance, "stop_for", self._stop_for(Performance.stop_for)),
            defined(Office),
            nursery(),
        ]
        self.children = [context.__enter__() for context in self.contexts][-1]

    def teardown(self) -> None:
        try:
            self.heal()
        finally:
            transaction.set_rollback(True)
            for context in reversed(self.contexts):
                context.__exit__(None, None, None)

    @staticmethod
    def _checkpoint(original: Any) -> Any:
        def reach(performance: Any, write: Any, *, is_done: Any) -> Any:
            number = performance.__dict__.setdefault("checkpoints", itertools.count(1))
            script.hit(next(number))
            return original(performance, write, is_done=is_done)

        return reach

    @staticmethod
    def _stop_for(original: Any) -> Any:
        return lambda performance, error: None if isinstance(error, Killed) else original(performance, error)

    @initialize()
    def deploy_first(self) -> None:
        deploy_all(now=self.now)

    @rule(topic=st.sampled_from(["mail", "post", "rows"]), count=st.integers(1, 3), again=st.booleans())
    def publish(self, topic: str, count: int, again: bool) -> None:
        ids = [f"{topic} {1 if again else next(self.numbers)}" for _ in range(count)]
        publish(topic, *ids, now=self.now)

    @rule(span=st.sampled_from([1, 11, 31, 301, 90_000]))
    def wait(self, span: int) -> None:
        self.now += seconds(span)

    @rule()
    def tick(self) -> None:
        assert tick(self.now)

    @rule(wake_in=st.sampled_from([None, seconds(1), timedelta(days=2), "soon"]), reserve=st.integers(0, 3))
    def work(self, wake_in: Any, reserve: int) -> None:
        tick(self.now)
        self.perform(Script(wake_in=wake_in, reserve=reserve))

    def make_ready(self, ready: bool) -> None:
        """What was stuck has gone on, and the next run has something to do; or whatever comes next."""
        if ready:
            self.go_on()
            publish("mail", f"ready {next(self.numbers)}", now=self.now)
        tick(self.now)

    @rule(
        ready=EITHER,
        place=st.sampled_from(PLACES),
        failure=st.sampled_from(FAILURES),
        swallows=EITHER,
        returns=st.sampled_from(["the result", 7, None, {1}]),
    )
    def fail(self, ready: bool, place: str, failure: Any, swallows: bool, returns: Any) -> None:
        self.make_ready(ready)
        if place == "after" and failure in IT_DID_NOT_HAPPEN:
            failure = Indeterminate
        self.perform(Script(place, failure, swallows=swallows, returns=returns))

    @rule(ready=EITHER, at=AT, what=st.sampled_from(["crash", "publish", "skip"]))
    def strike(self, ready: bool, at: int, what: str) -> None:
        """Before any checkpoint, in the call, or after the last one. Of a crash, nobody hears the outcome."""
        self.make_ready(ready)
        strikes: dict[str, Callable[[], Any]] = {
            "crash": self._raise_killed,
            "publish": partial(publish, "mail", f"meanwhile {next(self.numbers)}", now=self.now),
            "skip": self.skip_event,
        }
        self.perform(Script(strikes_at=at, strike=strikes[what]), is_lost=what == "crash")

    def _raise_killed(self) -> None:
        raise Killed

    @rule(ready=EITHER, at=AT, reason=REASONS, swallows=EITHER, reserve=st.sampled_from([2, 0]))
    def interrupt(self, ready: bool, at: int, reason: Any, swallows: bool, reserve: int) -> None:
        self.make_ready(ready)
        strike = partial(self._interrupt, reason)
        self.perform(Script(strikes_at=at, swallows=swallows, reserve=reserve, strike=strike))

    def _interrupt(self, reason: Any) -> None:
        if reason == "cancel":
            Job.find(UUID(self.context.work.key)).cancel(initiator=SOMEBODY, now=self.now)  # type: ignore[union-attr]
        self.context.interrupt(reason)

    @rule(ready=EITHER, at=AT, others=st.integers(0, 3), resolves=EITHER, comes=EITHER)
    def haunt(self, ready: bool, at: int, others: int, resolves: bool, comes: bool) -> None:
        """The worker counts as lost and its run is given to others, but it goes on where it was."""
        self.make_ready(ready)
        self.perform(Script(strikes_at=at, strike=lambda: self._meanwhile(others, resolves, comes)))

    def _meanwhile(self, others: int, resolves: bool, comes: bool) -> None:
        global script
        own, context = script, self.context
        self._bury(self.worker)
        if comes:
            publish("mail", f"late {next(self.numbers)}", now=self.now)
        for _ in range(others):
            tick(self.now)
            if resolves:
                self.resolve_truly()
            self.perform(Script())
        script, self.context = own, context

    @rule()
    def skip_event(self) -> None:
        event = Event.objects.pending().order_by("-pk").first()
        assert event is None or event.skip("", initiator=SOMEBODY, now=self.now)

    @rule()
    def cancel_queued(self) -> None:
        tick(self.now)
        for run in Run.objects.active():
            Job.find(run.key).cancel(initiator=SOMEBODY, now=self.now)  # type: ignore[union-attr]

    def is_stuck(self) -> bool:
        return Run.objects.stuck().exists()

    @precondition(is_stuck)
    @rule(verb=st.sampled_from(["approve", "reject", "skip", "retry"]))
    def resolve(self, verb: str) -> None:
        run = Run.objects.stuck().get()
        with suppress(Refused):
            getattr(run, verb)("because", initiator=SOMEBODY, now=self.now)
            assert verb != "approve" or run.is_approved

    @precondition(is_stuck)
    @rule()
    def resolve_truly(self) -> None:
        """A person looks whether it happened, signs in, or asks for another try."""
        run = Run.objects.stuck().first()
        if run is None:
            return
        if run.effect == Run.Effect.IN_FLIGHT:
            known = effects(ledger).get(str(run.mutation_key))
            result = known[0] if known else None
            run.reconcile(bool(known), "", result=result, initiator=SOMEBODY, now=self.now)
        elif run.status == "paused:approval":
            run.approve("", initiator=SOMEBODY, now=self.now)
        else:
            run.retry("", initiator=SOMEBODY, now=self.now)

    @rule(pauses=st.booleans())
    def pause_or_resume(self, pauses: bool) -> None:
        row = Row.objects.get()
        verb = partial(row.pause, "") if pauses else row.resume
        verb(initiator=SOMEBODY, now=self.now)

    @rule()
    def run_now(self) -> None:
        with suppress(Refused):
            Row.objects.get().run_now(initiator=SOMEBODY, now=self.now)

    @rule(other=st.booleans())
    def deploy(self, other: bool) -> None:
        """The same code, or another version of it."""
        self.version += other
        with (
            patch.object(Sort, "version", f"v{self.version}"),
            patch.object(File, "version", f"v{self.version}"),
        ):
            deploy_all(now=self.now)

    @invariant()
    def promises_are_kept(self) -> None:
        assert violations(ledger, now=self.now) == []
        assert self.witness.look(now=self.now) == []

    def perform(self, own: Script, *, is_lost: bool = False) -> Outcome | None:
        """What a worker does with a task, from the claim to the end; or, if it is lost, to its death."""
        global script
        script, self.worker = own, make_worker(self.now)
        worker, outcome = self.worker, None
        for task in claim(worker, limit=1, now=self.now):
            outcome = self._perform(task)
            if is_lost:
                self._bury(worker)
            else:
                WorkerTask.objects.finish([Finish(task, outcome)], worker_id=worker.pk, now=self.now)
        script = Script()
        return outcome

    def _perform(self, task: ClaimedTask) -> Outcome:
        said = StepOutput(task.activity_id, lambda: self.now)
        self.context = Context(task.work, said)
        return perform(task.work, said, nursery=self.children, context=self.context, clock=lambda: self.now)

    def _bury(self, worker: Worker) -> None:
        Worker.objects.filter(pk=worker.pk).bury(now=self.now)
        WorkerTask.objects.recover(now=self.now)

    def go_on(self) -> None:
        """Nothing fails any more, and people answer, until nothing is left to do."""
        Row.objects.get().resume(initiator=SOMEBODY, now=self.now)
        for _ in range(200):
            tick(self.now)
            if self.perform(Script()) is None:
                if not Run.objects.open().exists():
                    return
                self.now += seconds(601)
                self.resolve_truly()
        raise AssertionError("it does not come to an end")

    def heal(self) -> None:
        """All that was published is seen to; a consumer that left events alone takes them with the next."""
        for topic in ("mail", "rows"):
            publish(topic, "the last", now=self.now)
        self.go_on()
        assert unfinished(list(Row.objects.all())) == []
        self.promises_are_kept()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_promises_are_kept_whatever_happens(examples: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            report_multiple_bugs=False,
        ),
    )
