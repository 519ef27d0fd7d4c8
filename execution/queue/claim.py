"""Claim tasks: choose the next ones, and move them from queued to processing.

Tasks without a limit are claimed by one statement, in the order of the queue. If limits or reservations
affect which task is next, a query without locks first finds the groups of tasks that have room, so that a
full limit costs little for tasks that do not need it. Only then are the limits locked, in the order of their
keys, and everything is counted again: under the lock, the counts cannot change. The SQL statements are in the
modules `postgresql` and `sqlite`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from django.db import connection, transaction

from execution.models.attempt import ClaimedTask
from execution.models.worker import serves
from execution.steps.step_type import Isolation

from .concurrency import choose
from .dialect import dialect
from .request import (
    ISOLATION,
    NOTHING_HANDED_OVER,
    ClaimRequest,
    Freed,
    HandOver,
    Row,
    SeatCounts,
    TaskGroup,
)
from .snapshot import find_open_groups, look_at_first

MOST_PASSED_OVER = 100


def claim(by: ClaimRequest, *, freed: Freed | None = None) -> list[ClaimedTask]:
    """Claim ready tasks for the free seats of a living worker, and begin their activities.

    `freed` says how many tasks of each group the surrounding transaction has ended. It is None if no such
    transaction exists.
    """
    # Isolations that have no room at all are left out.
    free: SeatCounts = {each: by.free[each] for each, size in by.most(by.free).items() if size > 0}
    rows = _claim(by, free, freed) if free else []
    return sorted((ClaimedTask(row, by.now) for row in rows), key=lambda task: task.turn)


def _claim(by: ClaimRequest, free: SeatCounts, freed: Freed | None) -> list[Row]:
    handed_over = _hand_over(by, free, freed or {})
    if handed_over.is_all:
        return handed_over.rows
    if handed_over.is_contested:
        return _claim_by_turn(by, free)
    most = by.most(free)
    unlimited = dialect().claim_unlimited(by, most, among_limited=False, is_writing=freed == {})
    if unlimited.is_contested:
        return unlimited.rows + _claim_by_turn(by, _left(free, unlimited.rows))
    return unlimited.rows


def _hand_over(by: ClaimRequest, free: SeatCounts, freed: Freed) -> HandOver:
    """Give the slots of a group's ended tasks to the next tasks of the same group (decision 0029)."""
    if len(freed) != 1:
        return NOTHING_HANDED_OVER
    [(group, number)] = freed.items()
    if free.get(group.isolation, 0) < number or not serves(by.pools, group.pool):
        return NOTHING_HANDED_OVER
    return dialect().hand_over(by, group, number)


def _claim_by_turn(by: ClaimRequest, free: SeatCounts) -> list[Row]:
    """Claim the next tasks that may start, with and without a limit, in the order of the queue."""
    groups = find_open_groups(by.pools, free)
    if not groups:
        return _claim_others(by, by.most(free))
    # A transaction that has claimed or ended tasks has locked the table already.
    has_table = connection.in_atomic_block
    with transaction.atomic(savepoint=False):
        if any(size > 0 for size in free.values()):
            dialect().lock_for_claim(groups.limit_keys, groups.reserved_pools, has_table=has_table)
        return _claim_first(by, groups, free)


def _claim_first(
    by: ClaimRequest, groups: Sequence[TaskGroup], free: SeatCounts, passed_over: Sequence[int] = ()
) -> list[Row]:
    """Claim the next tasks in the order of the queue: tasks of these groups, and tasks without a limit.

    Tasks that another transaction is changing are skipped, and later tasks are claimed instead.
    """
    seats = max(1, *free.values())
    found = look_at_first(groups, seats=seats, others=by.most(free), pools=by.pools, passed_over=passed_over)
    choice = choose(found.candidates, found.room, free=free, ahead=by.ahead)
    rows = dialect().claim_ids(by, choice.chosen) if choice.chosen else []
    missed = set(choice.chosen) - {row[0] for row in rows}
    if missed and len(passed_over) < MOST_PASSED_OVER:
        return rows + _claim_first(by, groups, _left(free, rows), [*passed_over, *missed])
    return rows + _claim_others(by, choice.others)


def _claim_others(by: ClaimRequest, most: SeatCounts) -> list[Row]:
    """Claim tasks without a limit: for each isolation, at most as many as `most` says."""
    wanted: SeatCounts = {isolation: size for isolation, size in most.items() if size > 0}
    if not wanted:
        return []
    return dialect().claim_unlimited(by, wanted, among_limited=True, is_writing=False).rows


def _left(free: SeatCounts, rows: Sequence[Row]) -> dict[Isolation, int]:
    """Return, by isolation, how many seats are left after these rows have been claimed."""
    taken = Counter(row[ISOLATION] for row in rows)
    return {isolation: size - taken[isolation] for isolation, size in free.items()}
