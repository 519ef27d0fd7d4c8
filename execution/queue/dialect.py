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
        """Claim tasks without a limit: for each isolation, at most as many as `most` says.

        If limits or reservations affect which task is next, claim nothing, unless `among_limited` is true:
        then the caller has counted the room of the limits, and these seats are left for tasks without a
        limit. If `is_writing` is true,
        the caller's transaction has written already, and a task is probably ready.
        """

    def hand_over(self, by: ClaimRequest, group: TaskGroup, number: int) -> HandOver:
        """Give the slots of `number` ended tasks to the next tasks of their group, without counting again."""

    def claim_ids(self, by: ClaimRequest, ids: Sequence[int]) -> list[Row]:
        """Claim these tasks, except for those that another transaction is changing."""

    def lock_for_claim(self, keys: Collection[str], pools: Collection[str], *, has_table: bool) -> None:
        """Lock the queue for writing (unless `has_table`), then limits by key, then reservations by pool."""

    def lock_limits(self, keys: Collection[str]) -> dict[str, int]:
        """Lock the existing limits with these keys, in order, and return their sizes by key."""

    def lock_reservations(self, pools: Collection[str]) -> None:
        """Lock the live reservations of these pools, in order."""

    def lock_queue(self, *, milliseconds: int) -> None:
        """Keep others from queueing, claiming or ending tasks; wait for the lock at most `milliseconds`."""

    def count_groups(self, after: TaskGroup | None, *, most: int) -> list[Row]:
        """Return the rows of COUNTS and up to `most` groups of ready tasks with a limit.

        The groups are those that follow the group `after`, or the first ones if it is None.
        """

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
        """Delete the tasks that this worker still holds, and return their rows.

        The fence (id, attempt, worker) shows which tasks these are.
        """

    def release_held(self, tasks: Sequence[ClaimedTask], worker_id: UUID) -> list[Row]:
        """Queue again the tasks that this worker still holds, and return their rows.

        Tasks that are being cancelled are left alone.
        """


def dialect() -> Dialect:
    return postgresql if connection.vendor == "postgresql" else sqlite
