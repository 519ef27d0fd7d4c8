"""What becomes of a run that did not commit: how it is classified, when it goes on, and where."""

from __future__ import annotations

from itertools import product

import pytest

from execution.steps.outcome import StepFailed
from tests.base import NOW, seconds
from workflows import AuthRequired, Indeterminate, Internal, PermissionRequired, Transient
from workflows.failures import (
    Beginning,
    Effect,
    Phase,
    Status,
    Stop,
    Tries,
    backoff,
    classify,
    error_text,
    following,
    stop,
)

CLASSES: list[tuple[BaseException, Status, Status]] = [
    # Raised, the status while nothing is in flight, and while the mutation is.
    (Transient(), Status.PAUSED_TRANSIENT, Status.PAUSED_TRANSIENT),
    (AuthRequired(), Status.PAUSED_APPROVAL, Status.PAUSED_APPROVAL),
    (PermissionRequired(), Status.PAUSED_APPROVAL, Status.PAUSED_APPROVAL),
    (Indeterminate(), Status.FAILED_LOGIC, Status.PAUSED_RECONCILIATION),
    (Internal(), Status.FAILED_INTERNAL, Status.PAUSED_RECONCILIATION),
    (ValueError(), Status.FAILED_LOGIC, Status.PAUSED_RECONCILIATION),
    (StepFailed("?"), Status.FAILED_LOGIC, Status.PAUSED_RECONCILIATION),
    (KeyboardInterrupt(), Status.FAILED_LOGIC, Status.PAUSED_RECONCILIATION),
    (SystemExit(0), Status.FAILED_LOGIC, Status.PAUSED_RECONCILIATION),
]


@pytest.mark.parametrize(
    ("error", "outside", "inside"), CLASSES, ids=[type(row[0]).__name__ for row in CLASSES]
)
def test_the_classification(error: BaseException, outside: Status, inside: Status) -> None:
    assert classify(error, in_flight=False) == outside
    assert classify(error, in_flight=True) == inside


def test_what_it_is_matters_and_its_words_do_not() -> None:
    class RateLimited(Transient):
        pass

    assert classify(RateLimited("permission denied"), in_flight=False) == Status.PAUSED_TRANSIENT
    assert classify(ValueError("rate limit, timeout, 429"), in_flight=False) == Status.FAILED_LOGIC


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Transient("The carrier is down"), "The carrier is down"),
        (Transient(), "Transient"),
        (KeyError("name"), "KeyError: 'name'"),
    ],
    ids=repr,
)
def test_what_is_no_failure_of_its_own_is_told_with_its_kind(error: Exception, words: str) -> None:
    assert error_text(error) == words


@pytest.mark.parametrize(
    ("tries", "wait"),
    [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 320), (7, 600), (8, 600), (10_000, 600)],
)
def test_the_backoff(tries: int, wait: float) -> None:
    assert backoff(tries) == seconds(wait)


STOPS: list[tuple[Status, Tries, bool, float | None, Status, Tries]] = [
    # The status, the tries before, whether it can reconcile; then when it goes on, its status and tries.
    (Status.PAUSED_TRANSIENT, Tries(), False, 10, Status.PAUSED_TRANSIENT, Tries(transient=1)),
    (Status.PAUSED_TRANSIENT, Tries(4, 1, 1, 1), False, 160, Status.PAUSED_TRANSIENT, Tries(5, 1, 1, 1)),
    (Status.PAUSED_TRANSIENT, Tries(5), False, None, Status.PAUSED_TRANSIENT, Tries(6)),
    (Status.PAUSED_APPROVAL, Tries(1), False, None, Status.PAUSED_APPROVAL, Tries(1)),
    (Status.PAUSED_RECONCILIATION, Tries(), False, None, Status.PAUSED_RECONCILIATION, Tries()),
    (Status.PAUSED_RECONCILIATION, Tries(), True, 0, Status.PAUSED_RECONCILIATION, Tries()),
    (Status.PAUSED_RECONCILIATION, Tries(0, 1), True, 10, Status.PAUSED_RECONCILIATION, Tries(0, 1)),
    (Status.PAUSED_RECONCILIATION, Tries(0, 4), True, 80, Status.PAUSED_RECONCILIATION, Tries(0, 4)),
    (Status.PAUSED_RECONCILIATION, Tries(0, 5), True, None, Status.PAUSED_RECONCILIATION, Tries(0, 5)),
    (Status.FAILED_LOGIC, Tries(1, 2, 0, 3), True, None, Status.FAILED_LOGIC, Tries(1, 2, 0, 3)),
    (Status.FAILED_INTERNAL, Tries(), True, None, Status.FAILED_INTERNAL, Tries()),
    (Status.CRASHED, Tries(), False, 0, Status.CRASHED, Tries(crashes=1)),
    (Status.CRASHED, Tries(crashes=1), True, 0, Status.CRASHED, Tries(crashes=2)),
    (Status.CRASHED, Tries(crashes=2), True, None, Status.FAILED_INTERNAL, Tries(crashes=3)),
]


@pytest.mark.parametrize(("status", "tries", "can_reconcile", "wait", "ends", "then"), STOPS)
def test_which_way_out_is_taken_by_itself(
    status: Status, tries: Tries, can_reconcile: bool, wait: float | None, ends: Status, then: Tries
) -> None:
    due_at = None if wait is None else NOW + seconds(wait)
    assert stop(status, tries, can_reconcile=can_reconcile, now=NOW) == Stop(ends, due_at, then)


FRESH = Beginning(Phase.PREPARING, keeps=False)
APPROVED = {
    Phase.PREPARING: FRESH,
    Phase.PREPARED: Beginning(Phase.PREPARED, keeps=True),
    Phase.MUTATING: Beginning(Phase.PREPARED, keeps=True),
    Phase.EMITTING: Beginning(Phase.EMITTING, keeps=True),
}
EFFECTS: tuple[Effect, ...] = ("", "failed", "in_flight", "applied", "skipped")
BEFORE_COMMIT = [phase for phase in Phase if phase != Phase.COMMITTED]


@pytest.mark.parametrize(("phase", "effect"), list(product(BEFORE_COMMIT, EFFECTS)))
def test_the_reset_rules(phase: Phase, effect: Effect) -> None:
    """Settled, only forward; in flight, it is asked about; before it, from the start unless allowed."""
    plain, approved = (
        following(phase=phase, effect=effect, is_approved=is_approved) for is_approved in (False, True)
    )
    if effect in ("applied", "skipped"):
        assert plain == approved == Beginning(Phase.EMITTING, keeps=True)
    elif effect == "in_flight":
        assert plain == approved == Beginning(Phase.MUTATING, keeps=True)
    else:
        assert plain == FRESH
        assert approved == APPROVED.get(phase, approved)
