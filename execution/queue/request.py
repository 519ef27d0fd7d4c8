"""The parameters of claims, and the results of their statements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from execution.models.attempt import ClaimedTask
from execution.steps.step_type import Isolation

Row = Sequence[Any]
SeatCounts = Mapping[Isolation, int]
ACTIVITY, ISOLATION = ClaimedTask.COLUMNS.index("activity_id"), ClaimedTask.COLUMNS.index("isolation")


@dataclass
class ClaimRequest:
    """A worker's request for tasks, with its free seats.

    `now` is the time at which the claim began or, once tasks have been taken, the time at which they were
    taken.
    """

    worker_id: UUID
    pools: Sequence[str]
    now: datetime
    free: SeatCounts
    # How many tasks without a limit may be taken beyond the free seats.
    ahead: SeatCounts = field(default_factory=dict)
    clock: Callable[[], datetime] | None = None

    def most(self, free: SeatCounts) -> dict[Isolation, int]:
        """Return, by isolation, how many tasks without a limit can be claimed with these free seats."""
        return {isolation: size + self.ahead.get(isolation, 0) for isolation, size in free.items()}

    def look_at_clock(self) -> None:
        """Set `now` to the current time.

        Call this after counting, while holding the locks, so that the claimed tasks do not begin before the
        tasks that made room for them have ended.
        """
        if self.clock is not None:
            self.now = self.clock()


class TaskGroup(NamedTuple):
    """Tasks with the same limit keys, isolation and pool.

    Only groups of reserved pools can be without a limit.
    """

    limit_keys: str
    isolation: Isolation
    pool: str
    is_limited: bool


def seat_params(seats: SeatCounts) -> dict[str, int]:
    """Return the parameters %(thread)s and %(process)s, but only for isolations that have seats."""
    return {isolation: size for isolation, size in seats.items() if size > 0}


GROUP_COLUMNS = ("limit_keys", "isolation", "pool")


def by_kind(groups: Sequence[TaskGroup]) -> dict[str, list[TaskGroup]]:
    """Split groups into `limited` and `unlimited`. A kind is left out if it has no groups."""
    kinds = {
        "limited": [each for each in groups if each.is_limited],
        "unlimited": [each for each in groups if not each.is_limited],
    }
    return {kind: theirs for kind, theirs in kinds.items() if theirs}


# How many tasks of each group the transaction around the claim has ended.
Freed = Mapping[TaskGroup, int]


class UnlimitedClaim(NamedTuple):
    """The tasks without a limit that were claimed.

    If `is_contested` is true, limits or reservations affect which task is next: further tasks can be claimed
    only in turn, after counting how much room there is.
    """

    rows: list[Row]
    is_contested: bool


class HandOver(NamedTuple):
    """The tasks that took the slots of ended tasks."""

    rows: list[Row]
    # True if no other task could be claimed.
    is_all: bool
    # True if limits or reservations affect which task is next; no further query is needed to know this.
    is_contested: bool


NOTHING_HANDED_OVER = HandOver([], is_all=False, is_contested=False)
