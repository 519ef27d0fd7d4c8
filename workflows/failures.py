"""Pure functions that decide how a failed run ends, and where its next attempt begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

from execution.steps.performing import words_of

from .errors import AuthRequired, Failure, Indeterminate, Internal, PermissionRequired, PhaseError, Transient

BASE = timedelta(seconds=10)
CAP = timedelta(minutes=10)
MOST_TRANSIENT = 5
MOST_RECONCILED = 5
MOST_CRASHES = 3
MOST_FIXES = 3


class Status(StrEnum):
    ACTIVE = "active"
    PAUSED_TRANSIENT = "paused:transient"
    PAUSED_APPROVAL = "paused:approval"
    PAUSED_RECONCILIATION = "paused:reconciliation"
    FAILED_LOGIC = "failed:logic"
    FAILED_INTERNAL = "failed:internal"
    COMMITTED = "committed"
    CRASHED = "crashed"


class Phase(StrEnum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    MUTATING = "mutating"
    MUTATED = "mutated"
    EMITTING = "emitting"
    COMMITTED = "committed"


PHASES = tuple(Phase)
# The outcome of the mutation; empty if no mutation was attempted.
Effect = Literal["", "in_flight", "applied", "failed", "skipped"]


@dataclass(frozen=True)
class Tries:
    """Counts of failures, by kind, and of fixes, since a person last resolved the run."""

    transient: int = 0
    reconciled: int = 0
    crashes: int = 0
    fixes: int = 0


@dataclass(frozen=True)
class Stop:
    """How an attempt ends. `due_at`: when the next attempt begins; None if it does not begin by itself."""

    status: Status
    due_at: datetime | None
    tries: Tries


def error_text(error: BaseException) -> str:
    """Return the message of a Failure or PhaseError; for other errors, the exception type and message."""
    return str(error) if isinstance(error, Failure | PhaseError) and str(error) else words_of(error)


def classify(error: BaseException, *, in_flight: bool) -> Status:
    """Return the status of a run that failed with this exception.

    Once the mutation is in flight, its outcome is unknown unless the exception says that it did not happen.
    """
    match error:
        case Transient():
            return Status.PAUSED_TRANSIENT
        case AuthRequired() | PermissionRequired():
            return Status.PAUSED_APPROVAL
        case Indeterminate():
            return Status.PAUSED_RECONCILIATION if in_flight else Status.FAILED_LOGIC
    if in_flight:
        return Status.PAUSED_RECONCILIATION
    return Status.FAILED_INTERNAL if isinstance(error, Internal) else Status.FAILED_LOGIC


def stop(status: Status, tries: Tries, *, can_reconcile: bool, now: datetime) -> Stop:
    """Return how an attempt with this status ends: the new failure counts, and when the next one begins."""
    match status:
        case Status.PAUSED_TRANSIENT:
            tries = _more(tries, transient=1)
            at = now + backoff(tries.transient) if tries.transient <= MOST_TRANSIENT else None
            return Stop(status, at, tries)
        case Status.PAUSED_RECONCILIATION:
            at = _next_reconcile(tries, now) if can_reconcile else None
            return Stop(status, at, tries)
        case Status.CRASHED:
            tries = _more(tries, crashes=1)
            if tries.crashes >= MOST_CRASHES:
                return Stop(Status.FAILED_INTERNAL, None, tries)
            return Stop(status, now, tries)
    return Stop(status, None, tries)


def not_applied(tries: Tries, *, now: datetime) -> Stop:
    """Return how an attempt ends if its mutation turns out not to have happened.

    The work starts over: immediately the first time, after that with increasing delays.
    """
    tries = replace(tries, reconciled=0)
    again = stop(Status.PAUSED_TRANSIENT, tries, can_reconcile=True, now=now)
    return again if tries.transient else Stop(Status.PAUSED_RECONCILIATION, now, again.tries)


def _next_reconcile(tries: Tries, now: datetime) -> datetime | None:
    """Return when to reconcile again, or None if that was attempted too often.

    The first attempt is immediate, the second follows after 10 s, and each further delay is twice as long as
    the one before.
    """
    if tries.reconciled >= MOST_RECONCILED:
        return None
    return now + backoff(tries.reconciled) if tries.reconciled else now


def backoff(tries: int) -> timedelta:
    return min(CAP, BASE * int(2 ** min(tries - 1, 20)))


def _more(tries: Tries, *, transient: int = 0, crashes: int = 0) -> Tries:
    return Tries(tries.transient + transient, tries.reconciled, tries.crashes + crashes, tries.fixes)


@dataclass(frozen=True)
class Beginning:
    """The phase in which an attempt begins, and whether it `keeps` the last attempt's results and events."""

    phase: Phase
    keeps: bool


def following(*, phase: Phase, effect: Effect, is_approved: bool) -> Beginning:
    """Return where the next attempt begins, by the reset rules.

    A mutation of unknown outcome is reconciled first. After a mutation that was applied or skipped, the work
    continues with `next`. An approved run continues with what it has prepared, if anything. All other work
    starts over.
    """
    if effect in ("applied", "skipped"):
        return Beginning(Phase.EMITTING, keeps=True)
    if effect == "in_flight":
        return Beginning(Phase.MUTATING, keeps=True)
    if is_approved and phase != Phase.PREPARING:
        is_past = phase == Phase.EMITTING
        return Beginning(Phase.EMITTING if is_past else Phase.PREPARED, keeps=True)
    return Beginning(Phase.PREPARING, keeps=False)
