"""Queued → processing: who is next."""

from __future__ import annotations

from collections import Counter

from execution.models.attempt import Held

from .handover import Freed, hand_over
from .limited import claim_by_turn
from .unlimited import ISOLATION, Claimant, Seats, claim_unlimited


def claim(by: Claimant, *, free: Seats, ahead: Seats, freed: Freed | None) -> list[Held]:
    """Ready tasks for the free seats of a living worker, and their activities begin.

    Those that nobody limits may be taken `ahead` of free seats. `freed`: by tasks that this transaction ends,
    None if it ends none.
    """
    most = {isolation: size for isolation in free if (size := free[isolation] + ahead.get(isolation, 0)) > 0}
    if not most:
        return []
    rows, is_all, is_contested = hand_over(by, freed or {}, free=free)
    if not is_all and not is_contested:
        rows, is_contested = claim_unlimited(by, most, at_once=freed == {})
    if not is_all and is_contested:
        taken = Counter(row[ISOLATION] for row in rows)
        rows += claim_by_turn(by, free={each: free[each] - taken[each] for each in most}, ahead=ahead)
    return sorted((Held(row, by.now) for row in rows), key=lambda held: held.turn)
