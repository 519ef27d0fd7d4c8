"""Performs one run: phase after phase, each one's end a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from django.conf import settings
from django.db import DatabaseError, connection
from django.utils.module_loading import import_string

from database import clock
from database.outage import Outage
from database.statements import AWAY
from execution.steps.context import Context
from execution.steps.outcome import Interrupted, Later, Skipped, StepFailed, as_result

from . import definition, failures
from .contexts import (
    MutateContext,
    NextContext,
    PrepareContext,
    ProduceContext,
    ReconcileContext,
    _Publishing,
    reserved_by,
)
from .definition import Consumer, Mutation, Pending, Prepared, Producer, Reconciled
from .discovery import definitions
from .errors import Internal, Superseded, Transient
from .failures import Phase, Status, Stop
from .models import Run
from .models.commit import Commit
from .words import summary

AGAIN_SECONDS = 2.0
MOST_PREPARED = 3
T = TypeVar("T")
logger = logging.getLogger(__name__)


def perform(run: Run, step: Context) -> dict[str, Any]:
    """Returns what its activity shows; raises what went wrong, after the run was stopped for it."""
    performance = Performance(run, step)
    try:
        return performance.run_phases()
    except Superseded as error:
        raise StepFailed(str(error), can_retry=False) from None
    except (SystemExit, Later, Skipped) as error:
        performance.stop_for(error)
        raise StepFailed(f"{type(error).__name__}: {error}", can_retry=False) from error  # no end of a run
    except BaseException as error:
        performance.stop_for(error)
        raise


class Performance:
    def __init__(self, run: Run, step: Context) -> None:
        self.run = run
        self.step = step
        self.began_at = Phase(run.phase)
        # Says so, if this worker has other code than is deployed.
        self.outdated = ""
        # Of the mutation: a handler that catches it does not make it undone.
        self.trouble: BaseException | None = None
        self.is_asking = False

    def run_phases(self) -> dict[str, Any]:
        handler = self._handler()
        self._checkpoint(lambda: self.run.start(clock.now()), is_done=lambda: self.run.started_at is not None)
        if isinstance(handler, Producer):
            return self._produce(handler)
        return self._consume(handler)

    def _handler(self) -> Producer | Consumer:
        """While an upgrade is under way, a worker may have other code than was deployed: another one, or this
        one once it was started anew, can do what it cannot."""
        row = self.run.handler
        kind = definitions().handler(self.run.workflow.slug, row.name)
        if kind is None:
            raise Transient(
                f"The code of this worker has no handler {row.name}. "
                "Restart the workers so that they use what is deployed."
            )
        version = kind.code_version()
        if version != row.code_version:
            self.outdated = (
                f"This worker runs version {version} of {row.name}, but version {row.code_version} is "
                "deployed. Restart the workers so that they use it."
            )
            self.step.write(self.outdated)
        return kind()  # type: ignore[return-value]

    def _produce(self, producer: Producer) -> dict[str, Any]:
        ctx = ProduceContext(self.run, self.step, approved=self._is_approved(Phase.PREPARING))
        return self._commit(producer.produce(ctx), ctx)

    def _consume(self, consumer: Consumer) -> dict[str, Any]:
        if self.run.phase == Phase.PREPARING:
            self._prepare(consumer)
        prepared = self._prepared()
        if self.run.phase == Phase.MUTATING:
            self._reconcile(consumer, prepared)
        elif self.run.phase == Phase.PREPARED and prepared.reserve:
            self._mutate(consumer, prepared)
        self._reach(Phase.EMITTING)
        ctx = NextContext(self.run, self.step, approved=self._is_approved(Phase.EMITTING))
        return self._commit(consumer.next(ctx, prepared, self._mutation()), ctx)

    def _prepare(self, consumer: Consumer) -> None:
        for _ in range(MOST_PREPARED):
            self.step.check()
            asked = consumer.prepare(
                PrepareContext(self.run, self.step, approved=self._is_approved(Phase.PREPARING))
            )
            prepared = asked if asked is not None else Prepared()
            if not isinstance(prepared, Prepared):
                raise TypeError(f"prepare returns Prepared or None, not {type(prepared).__name__}")
            if not all(isinstance(each, Pending) for each in prepared.reserve):
                raise TypeError("Prepared.reserve is a list of events that peek returned")
            as_result(prepared.data)
            reached = self._checkpoint(
                lambda prepared=prepared: self.run.reach_prepared(prepared, now=clock.now()),  # type: ignore[misc]
                is_done=lambda: self.run.phase == Phase.PREPARED,
            )
            if reached is not False:
                return
        raise Transient("its events were skipped while it prepared")

    def _prepared(self) -> Prepared:
        known = self.run.prepare_result or {}
        return Prepared(
            reserved_by(self.run), known.get("data"), known.get("wake_at"), known.get("title", "")
        )

    def _mutate(self, consumer: Consumer, prepared: Prepared) -> None:
        consumer.mutate(
            MutateContext(self.run, self.step, self._noted, approved=self._is_approved(Phase.PREPARED)),
            prepared,
        )
        if self.trouble is not None:
            raise self.trouble

    def _noted(self, call: Callable[[], Any]) -> Any:
        try:
            return self._apply(call)
        except BaseException as error:
            self.trouble = error
            raise

    def _apply(self, call: Callable[[], Any]) -> Any:
        self.step.check()
        self._checkpoint(
            lambda: self.run.reach_mutating(now=clock.now()),
            is_done=lambda: self.run.phase == Phase.MUTATING,
        )
        self.step.check()
        result = call()
        self._keep_result(result)
        return result

    def _keep_result(self, result: object) -> None:
        try:
            stored = as_result(result)
        except StepFailed:
            # It happened all the same, only what it returned cannot be kept.
            self._reach_mutated(None)
            raise
        self._reach_mutated(stored)

    def _reach_mutated(self, result: object) -> None:
        self._checkpoint(
            lambda: self.run.reach_mutated(result, now=clock.now()),
            is_done=lambda: self.run.phase == Phase.MUTATED,
        )

    def _reconcile(self, consumer: Consumer, prepared: Prepared) -> None:
        """Whether what nobody knows of has happened; raises unless it has."""
        if consumer.reconcile is None:
            raise Undecided(
                "its outcome is unknown, and the handler cannot find out",
                Stop(Status.PAUSED_RECONCILIATION, None, self.run.tries),
            )
        self.is_asking = True
        found, why = self._ask(consumer, prepared)
        if found.verdict == "applied":
            self._keep_result(found.result)
        elif found.verdict == "failed":
            again = failures.not_applied(self.run.tries, now=clock.now())
            raise Undecided("it did not happen: the work starts afresh", again, effect=Run.Effect.FAILED)
        else:
            raise Undecided(why, self.run.reconcile_stop(self.run.tries, now=clock.now()))

    def _ask(self, consumer: Consumer, prepared: Prepared) -> tuple[Reconciled, str]:
        try:
            found = consumer.reconcile(ReconcileContext(self.run, self.step), prepared)
        except Exception as error:
            return definition.retry, f"asking whether it happened failed: {error}"
        if not isinstance(found, Reconciled):
            expected = f"reconcile returns applied(…), failed or retry, not {type(found).__name__}"
            return definition.retry, expected
        return found, "nobody can tell yet whether it happened"

    def _is_approved(self, phase: Phase) -> bool:
        """In the phase that asked for it, with what it asked about."""
        return self.run.is_approved and self.began_at == phase

    def _mutation(self) -> Mutation:
        if self.run.effect == Run.Effect.APPLIED:
            return Mutation("applied", self.run.mutation_result)
        return Mutation("skipped" if self.run.effect == Run.Effect.SKIPPED else "none")

    def _reach(self, phase: Phase) -> None:
        self.step.check()
        if self.run.phase != phase:
            self._checkpoint(
                lambda: self.run.reach(phase, now=clock.now()), is_done=lambda: self.run.phase == phase
            )

    def _commit(self, state: Any, ctx: _Publishing) -> dict[str, Any]:
        self.step.check()
        as_result(state)
        told = summary(self.run, ctx.publications)
        commit = Commit(state, ctx.publications, told)
        notice = self._checkpoint(
            lambda: self.run.commit(commit, now=clock.now()),
            is_done=lambda: self.run.status == Status.COMMITTED,
        )
        if notice:
            self.step.write(notice)
            logger.warning("run %s of %s: %s", self.run.pk, self.run.workflow.slug, notice)
        self.step.progress(1, 1, told)
        return {"run": self.run.pk, "published": len(ctx.publications)}

    def _checkpoint(self, write: Callable[[], T], *, is_done: Callable[[], bool]) -> T | None:
        """Once: if the database goes away meanwhile, what it has of it decides."""
        outage = Outage(logger, f"run {self.run.pk} waits for the database to remember how far it came")
        while True:
            try:
                return write()
            except AWAY as error:
                outage.note(error)
                if self._is_known(is_done):
                    return None
            except DatabaseError as error:
                raise Internal(f"the database refused what the run is to remember: {error}") from error

    def _is_known(self, is_done: Callable[[], bool]) -> bool:
        while True:
            if self.step.reason in ("lost", "drain"):
                self._give_up()
            connection.close()
            time.sleep(AGAIN_SECONDS)
            try:
                self.run.refresh_from_db()
            except AWAY:
                continue
            if not self.run.is_active and not is_done():
                raise Superseded(f"run {self.run.pk} is no longer this worker's")
            return is_done()

    def _give_up(self) -> NoReturn:
        raise Superseded("its worker lost touch with the database: recovery decides")

    def stop_for(self, error: BaseException) -> None:
        stop, told, effect = self._verdict(error)
        if stop is None:
            return
        written = stop
        self._checkpoint(
            lambda: self.run.stop(written, told, now=clock.now(), effect=effect),
            is_done=lambda: not self.run.is_active,
        )
        if self.run.status == Status.FAILED_LOGIC and self.run.due_at is None:
            fix(self.run)

    def _verdict(self, error: BaseException) -> tuple[Stop | None, BaseException | str, str | None]:
        now, run = clock.now(), self.run
        if isinstance(error, Undecided):
            return error.stop, str(error), error.effect
        in_flight = run.effect == Run.Effect.IN_FLIGHT
        if self.step.saw_interrupt or isinstance(error, Interrupted):
            return self._interrupted(in_flight)
        status = failures.classify(error, in_flight=in_flight)
        if status == Status.FAILED_LOGIC and self.outdated:
            status = Status.PAUSED_TRANSIENT
            error = Transient(f"{failures.told(error).rstrip('.')}. {self.outdated}")
        stop = failures.stop(status, run.tries, can_reconcile=self._can_reconcile(), now=now)
        # Of one that an earlier attempt left in flight, only `reconcile` can say so.
        is_its_own = in_flight and self.began_at != Phase.MUTATING
        did_not_happen = is_its_own and status != Status.PAUSED_RECONCILIATION
        return stop, error, Run.Effect.FAILED.value if did_not_happen else None

    def _interrupted(self, in_flight: bool) -> tuple[Stop | None, str, None]:
        """A drain is nobody's fault, a time-out may pass; what was cancelled goes on when one says so."""
        now, run, reason = clock.now(), self.run, self.step.reason
        if reason == "lost":
            return None, "", None
        if reason == "drain":
            return Stop(Status.CRASHED, now, run.tries), "its worker stopped", None
        told = (
            "cancelled while it ran"
            if reason == "cancel"
            else f"timed out after {run.handler.timeout_seconds} s"
        )
        status = Status.PAUSED_APPROVAL if reason == "cancel" else Status.PAUSED_TRANSIENT
        status = Status.PAUSED_RECONCILIATION if in_flight else status
        if in_flight and self.is_asking:
            return run.reconcile_stop(run.tries, now=now), told, None
        return failures.stop(status, run.tries, can_reconcile=self._can_reconcile(), now=now), told, None

    def _can_reconcile(self) -> bool:
        kind = definitions().handler(self.run.workflow.slug, self.run.handler.name)
        return getattr(kind, "reconcile", None) is not None


class Undecided(Exception):
    """`reconcile` did not find that the mutation was applied."""

    def __init__(self, why: str, stop: Stop, *, effect: Run.Effect | None = None) -> None:
        super().__init__(why)
        self.stop = stop
        self.effect = None if effect is None else effect.value


def fix(run: Run) -> None:
    """Ask the installation's fixer, if it has one, three times at most in a chain of attempts.

    If it says yes, the next attempt begins at once, with the code that workers have loaded: code that it
    deployed has its turn when they are started anew.
    """
    path = settings.JIM_WORKFLOW_FIXER
    if not path or run.fixes >= failures.MOST_FIXES:
        return
    try:
        fixed = import_string(path)(run)
    except Exception:
        logger.exception("the fixer failed on run %s", run.pk)
        return
    if fixed:
        run.fix(now=clock.now())
