"""The statements of the queue for the database in use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from django.db import connection

from execution.models.attempt import ClaimedTask

from . import postgresql, sqlite
from .request import ClaimRequest, HandOver, Row, SeatCounts, TaskGroup, UnlimitedClaim

if TYPE_CHECKING:
    from execution.models.planned import Planned


class Dialect(Protocol):
    """The interface that `postgresql` and `sqlite` share."""

    SETS: str
    """A WITH RECURSIVE clause that lists, as `s`, the distinct groups of ready tasks with a limit."""
    HAS_LIMIT: str
    """The SQL condition that there is a limit for one of a task's `limit_keys`."""

    def has_key(self, key: str) -> str:
        """Return the SQL condition that `key` is among a task's `limit_keys`."""

    def add(self, planned: Sequence[Planned], now: datetime) -> None:
        """Insert tasks and the activities of their first attempts, in order, and wake the workers."""

    def claim_unlimited(
        self, by: ClaimRequest, most: SeatCounts, *, among_limited: bool, is_writing: bool
    ) -> UnlimitedClaim:
        """Claim tasks without a limit: for each isolation, at most the number in `most`.

        If limits or reservations affect which task is next, claim none. With `among_limited`, claim them
        nevertheless: the caller has counted, and these seats are for tasks without a limit. With
        `is_writing`, the caller's transaction has written already, and a task is probably ready.
        """

    def hand_over(self, by: ClaimRequest, group: TaskGroup, number: int) -> HandOver:
        """Give the places of `number` ended tasks to the next tasks of their group, without a new count."""

    def claim_ids(self, by: ClaimRequest, ids: Sequence[int]) -> list[Row]:
        """Claim these tasks, except for those that another transaction is changing."""

    def lock_for_claim(self, keys: Collection[str], pools: Collection[str], *, has_table: bool) -> None:
        """Lock the queue for writing, unless `has_table`, then limits by key, then reservations by pool."""

    def lock_limits(self, keys: Collection[str]) -> dict[str, int]:
        """Lock the existing limits with these keys, in order, and return their sizes by key."""

    def lock_reservations(self, pools: Collection[str]) -> None:
        """Lock the live reservations of these pools, in order."""

    def lock_queue(self, *, milliseconds: int) -> None:
        """Keep others from queueing, claiming or ending tasks; wait for the lock for at most this long."""

    def count_groups(self, after: TaskGroup | None, *, most: int) -> list[Row]:
        """Return the rows of COUNTS and the next `most` groups of ready tasks with a limit, after `after`."""

    def first_tasks(
        self,
        groups: Sequence[TaskGroup],
        *,
        seats: int,
        others: SeatCounts,
        pools: Sequence[str],
        passed_over: Sequence[int],
    ) -> list[Row]:
        """Return the rows of COUNTS, the first tasks of each group, and the first tasks without a limit."""

    def delete_held(self, tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
        """Delete and return the tasks that this worker still holds, by the fence (id, attempt, worker)."""

    def release_held(self, tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
        """Queue again and return the tasks that this worker still holds and that are not being cancelled."""


def dialect() -> Dialect:
    return postgresql if connection.vendor == "postgresql" else sqlite
