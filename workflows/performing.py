"""Perform one run phase by phase, and record the end of each phase."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
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
    PublishingContext,
    ReconcileContext,
    reserved_by,
)
from .definition import Consumer, Mutation, Pending, Prepared, Producer, Reconciled
from .discovery import definitions
from .errors import Internal, Superseded, Transient
from .failures import Phase, Status, Stop
from .models import Run
from .models.commit import Commit
from .words import summary

RETRY_SECONDS = 2.0
MOST_PREPARE_ATTEMPTS = 3
T = TypeVar("T")
logger = logging.getLogger(__name__)


def perform(run: Run, step: Context) -> dict[str, Any]:
    """Perform the run and return the result for its activity.

    If an error occurs, stop the run before raising the error.
    """
    performance = Performance(run, step)
    try:
        return performance.run_phases()
    except Superseded as error:
        raise StepFailed(str(error), can_retry=False) from None
    except (SystemExit, Later, Skipped) as error:
        performance.stop_for(error)
        raise StepFailed(f"{type(error).__name__}: {error}", can_retry=False) from error
    except BaseException as error:
        performance.stop_for(error)
        raise


class Performance:
    """One run, performed by this worker."""

    def __init__(self, run: Run, step: Context) -> None:
        self.run = run
        self.step = step
        self.began_at = Phase(run.phase)
        # Empty unless this worker's code differs from the deployed version.
        self.outdated = ""
        # Kept because a handler that catches the error of its mutation has still failed.
        self.mutation_error: BaseException | None = None
        self.is_reconciling = False

    def run_phases(self) -> dict[str, Any]:
        handler = self._handler()
        self._checkpoint(self.run.start, is_done=lambda: self.run.started_at is not None)
        if isinstance(handler, Producer):
            return self._produce(handler)
        return self._consume(handler)

    def _handler(self) -> Producer | Consumer:
        """Return a new instance of the handler from this worker's code; raise Transient if it is missing.

        During an upgrade, this worker's code may differ from the deployed version. The run is then still
        performed, but a logic error counts as temporary, so that the run is retried.
        """
        row = self.run.handler
        kind = definitions().handler(self.run.workflow.slug, row.name)
        if kind is None:
            raise Transient(
                f"This worker's code has no handler {row.name}. "
                "Restart the workers so that they use the deployed code."
            )
        version = kind.code_version()
        if version != row.code_version:
            self.outdated = (
                f"This worker runs version {version} of {row.name}, but version {row.code_version} is "
                "deployed. Restart the workers so that they use the deployed code."
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
        self.step.check()
        if self.run.phase != Phase.EMITTING:
            self._reach(Phase.EMITTING, self.run.reach, Phase.EMITTING)
        ctx = NextContext(self.run, self.step, approved=self._is_approved(Phase.EMITTING))
        return self._commit(consumer.next(ctx, prepared, self._mutation()), ctx)

    def _prepare(self, consumer: Consumer) -> None:
        for _ in range(MOST_PREPARE_ATTEMPTS):
            self.step.check()
            returned = consumer.prepare(
                PrepareContext(self.run, self.step, approved=self._is_approved(Phase.PREPARING))
            )
            prepared = returned if returned is not None else Prepared()
            if not isinstance(prepared, Prepared):
                raise TypeError(f"prepare must return Prepared or None, not {type(prepared).__name__}")
            if not all(isinstance(each, Pending) for each in prepared.reserve):
                raise TypeError("Prepared.reserve must be a list of events that ctx.peek returned")
            as_result(prepared.data)
            if self._reach(Phase.PREPARED, self.run.reach_prepared, prepared) is not False:
                return
        raise Transient("events that the run wanted to reserve were no longer pending")

    def _prepared(self) -> Prepared:
        known = self.run.prepare_result or {}
        return Prepared(
            reserved_by(self.run), known.get("data"), known.get("wake_at"), known.get("title", "")
        )

    def _mutate(self, consumer: Consumer, prepared: Prepared) -> None:
        consumer.mutate(
            MutateContext(
                self.run, self.step, self._apply_noting_error, approved=self._is_approved(Phase.PREPARED)
            ),
            prepared,
        )
        if self.mutation_error is not None:
            raise self.mutation_error

    def _apply_noting_error(self, call: Callable[[], Any]) -> Any:
        try:
            return self._apply(call)
        except BaseException as error:
            self.mutation_error = error
            raise

    def _apply(self, call: Callable[[], Any]) -> Any:
        self.step.check()
        self._reach(Phase.MUTATING, self.run.reach_mutating)
        self.step.check()
        result = call()
        self._keep_result(result)
        return result

    def _keep_result(self, result: object) -> None:
        try:
            stored = as_result(result)
        except StepFailed:
            # The mutation happened; only its result cannot be stored.
            self._reach(Phase.MUTATED, self.run.reach_mutated, None)
            raise
        self._reach(Phase.MUTATED, self.run.reach_mutated, stored)

    def _reconcile(self, consumer: Consumer, prepared: Prepared) -> None:
        """Find out whether a mutation of unknown outcome happened; raise Undecided unless it did."""
        if consumer.reconcile is None:
            raise Undecided(
                "the outcome of the mutation is unknown, and the handler has no `reconcile` method",
                Stop(Status.PAUSED_RECONCILIATION, None, self.run.tries),
            )
        self.is_reconciling = True
        found, why = self._ask_handler(consumer, prepared)
        if found.verdict == "applied":
            self._keep_result(found.result)
        elif found.verdict == "failed":
            again = failures.not_applied(self.run.tries, now=clock.now())
            raise Undecided(
                "the mutation did not happen; the work starts over", again, effect=Run.Effect.FAILED
            )
        else:
            raise Undecided(why, self.run.reconcile_stop(self.run.tries, now=clock.now()))

    def _ask_handler(self, consumer: Consumer, prepared: Prepared) -> tuple[Reconciled, str]:
        try:
            found = consumer.reconcile(ReconcileContext(self.run, self.step), prepared)
        except Exception as error:
            return definition.retry, f"reconcile failed: {error}"
        if not isinstance(found, Reconciled):
            expected = f"reconcile must return applied(…), failed or retry, not {type(found).__name__}"
            return definition.retry, expected
        return found, "reconcile cannot tell yet whether the mutation happened"

    def _is_approved(self, phase: Phase) -> bool:
        """Return whether the run asked for approval in this phase and a person has approved it."""
        return self.run.is_approved and self.began_at == phase

    def _mutation(self) -> Mutation:
        if self.run.effect == Run.Effect.APPLIED:
            return Mutation("applied", self.run.mutation_result)
        return Mutation("skipped" if self.run.effect == Run.Effect.SKIPPED else "none")

    def _commit(self, state: Any, ctx: PublishingContext) -> dict[str, Any]:
        self.step.check()
        as_result(state)
        did = summary(self.run, ctx.publications)
        commit = Commit(state, ctx.publications, did)
        notice = self._reach(Phase.COMMITTED, self.run.commit, commit)
        if notice:
            self.step.write(notice)
            logger.warning("run %s of %s: %s", self.run.pk, self.run.workflow.slug, notice)
        self.step.progress(1, 1, did)
        return {"run": self.run.pk, "published": len(ctx.publications)}

    def _reach(self, phase: Phase, write: Callable[..., T], *args: Any) -> T | None:
        """Call `write`, a method that records that the run has reached the phase, and return its result."""
        return self._checkpoint(partial(write, *args), is_done=lambda: self.run.phase == phase)

    def _checkpoint(self, write: Callable[..., T], *, is_done: Callable[[], bool]) -> T | None:
        """Call `write` until it has succeeded exactly once, and return its result.

        After a lost connection, the run is reloaded, and `is_done` tells whether the write succeeded. If it
        did, its result is unknown, and None is returned.
        """
        outage = Outage(logger, f"run {self.run.pk} waits for the database to record its progress")
        while True:
            try:
                return write(now=clock.now())
            except AWAY as error:
                outage.note(error)
                if self._was_written(is_done):
                    return None
            except DatabaseError as error:
                raise Internal(f"the database refused to record the run's progress: {error}") from error

    def _was_written(self, is_done: Callable[[], bool]) -> bool:
        while True:
            if self.step.reason in ("lost", "drain"):
                self._give_up()
            connection.close()
            time.sleep(RETRY_SECONDS)
            try:
                self.run.refresh_from_db()
            except AWAY:
                continue
            if not self.run.is_active and not is_done():
                raise Superseded(f"run {self.run.pk} no longer belongs to this worker")
            return is_done()

    def _give_up(self) -> NoReturn:
        raise Superseded("its worker lost the database connection; recovery decides what follows")

    def stop_for(self, error: BaseException) -> None:
        stop, reason, effect = self._verdict(error)
        if stop is None:
            return
        self._checkpoint(
            partial(self.run.stop, stop, reason, effect=effect), is_done=lambda: not self.run.is_active
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
            error = Transient(f"{failures.error_text(error).rstrip('.')}. {self.outdated}")
        stop = failures.stop(status, run.tries, can_reconcile=self._can_reconcile(), now=now)
        # Only `reconcile` can tell that a mutation of an earlier attempt did not happen.
        is_own_mutation = in_flight and self.began_at != Phase.MUTATING
        did_not_happen = is_own_mutation and status != Status.PAUSED_RECONCILIATION
        return stop, error, Run.Effect.FAILED.value if did_not_happen else None

    def _interrupted(self, in_flight: bool) -> tuple[Stop | None, str, None]:
        """Return the `_verdict` on an interrupted run; its Stop is None if the worker no longer owns the run.

        The run is retried after a drain or a timeout, and waits for approval after a cancel. A mutation in
        flight is reconciled first.
        """
        now, run, reason = clock.now(), self.run, self.step.reason
        if reason == "lost":
            return None, "", None
        if reason == "drain":
            return Stop(Status.CRASHED, now, run.tries), "the run's worker stopped", None
        message = (
            "cancelled while running"
            if reason == "cancel"
            else f"timed out after {run.handler.timeout_seconds} s"
        )
        status = Status.PAUSED_APPROVAL if reason == "cancel" else Status.PAUSED_TRANSIENT
        status = Status.PAUSED_RECONCILIATION if in_flight else status
        if in_flight and self.is_reconciling:
            return run.reconcile_stop(run.tries, now=now), message, None
        return failures.stop(status, run.tries, can_reconcile=self._can_reconcile(), now=now), message, None

    def _can_reconcile(self) -> bool:
        kind = definitions().handler(self.run.workflow.slug, self.run.handler.name)
        return getattr(kind, "reconcile", None) is not None


class Undecided(Exception):
    """Raised by reconciliation if the mutation did not happen, or if its outcome is still unknown."""

    def __init__(self, why: str, stop: Stop, *, effect: Run.Effect | None = None) -> None:
        super().__init__(why)
        self.stop = stop
        self.effect = None if effect is None else effect.value


def fix(run: Run) -> None:
    """Call the function that JIM_WORKFLOW_FIXER names, unless it has already fixed this work three times.

    If the function returns a true value, the next attempt begins immediately, with the code that workers have
    loaded. New code is used only after the workers restart.
    """
    path = settings.JIM_WORKFLOW_FIXER
    if not path or run.fixes >= failures.MOST_FIXES:
        return
    try:
        fixed = import_string(path)(run)
    except Exception:
        logger.exception("JIM_WORKFLOW_FIXER failed for run %s", run.pk)
        return
    if fixed:
        run.fix(now=clock.now())
