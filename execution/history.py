"""Queries for pages about many executions. Each query reads a bounded part of an index, in one statement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import NamedTuple

from django.db import connection

from database.statements import fetch, instant

SUCCESSES_JUDGED = 20
USUAL_AMONG = 50
MOST_ON_A_CALENDAR = 10_000
# Reading a plan is slow, so only the plans of retries are read: no other plans contain reused steps.
IS_PARTIAL = (
    """CASE WHEN retry_of_id IS NULL THEN 0 WHEN CAST(plan AS text) LIKE '%%"reused"%%' THEN 1 ELSE 0 END"""
)
# All times in a bucket begin with the same characters: 13 of them for an hour, 15 for ten minutes. Both
# databases write these characters in much the same way.
HOUR, TEN_MINUTES = 13, 15


class Ran(NamedTuple):
    """What a chart needs to know about one execution."""

    id: int
    state: str
    started_at: datetime
    finished_at: datetime | None
    activity_id: int = 0
    deadline_at: datetime | None = None
    is_partial: bool = False
    """Whether this is a retry that reused results of earlier steps, so its duration does not cover them."""

    @property
    def duration(self) -> timedelta | None:
        return self.finished_at - self.started_at if self.finished_at else None


class Bucket(NamedTuple):
    """The number of executions with one status in one period."""

    at: datetime
    status: str
    number: int


def recent(schedule_ids: Sequence[int], *, count: int) -> dict[int, list[Ran]]:
    """Return a dict from schedule id to the last `count` executions of that schedule, newest first."""
    if not schedule_ids:
        return {}
    columns = "schedule_id, id, status, cancel_requested_at IS NOT NULL, activity_id, started_at, finished_at"
    columns += f", {IS_PARTIAL}, deadline_at"
    newest = f"SELECT {columns} FROM execution_execution WHERE schedule_id = %s ORDER BY id DESC LIMIT %s"
    sql = " UNION ALL ".join(f"SELECT * FROM ({newest}) AS s{number}" for number in range(len(schedule_ids)))
    found = fetch(sql, [given for pk in schedule_ids for given in (pk, count)])
    rows: dict[int, list[Ran]] = defaultdict(list)
    for schedule_id, pk, status, is_asked, root, started_at, finished_at, is_partial, deadline_at in found:
        state = "cancelling" if is_asked and status == "in_progress" else status
        end, deadline = (instant(at) if at else None for at in (finished_at, deadline_at))
        ran = Ran(pk, state, instant(started_at), end, root, deadline, bool(is_partial))
        rows[schedule_id].append(ran)
    return {pk: sorted(ran, reverse=True) for pk, ran in rows.items()}


def usual_duration_of(schedule_id: int | None) -> timedelta | None:
    """Return how long an execution of the schedule usually takes; None if it is not known."""
    if schedule_id is None:
        return None
    return usual_duration(recent([schedule_id], count=USUAL_AMONG).get(schedule_id, []))


def usual_duration(ran: Sequence[Ran]) -> timedelta | None:
    """Return the median duration of the latest successful executions; None if there are none.

    `ran` must begin with the newest execution. Executions that reused steps are left out.
    """
    whole = [each for each in ran if each.state == "completed" and not each.is_partial]
    lengths = [each.duration for each in whole if each.duration is not None]
    if not lengths:
        return None
    return timedelta(seconds=median(length.total_seconds() for length in lengths[:SUCCESSES_JUDGED]))


def ended_by_hour(since: datetime) -> list[Bucket]:
    """Count the executions that have ended since this time, by status and by the hour (UTC) of their end."""
    at = connection.ops.adapt_datetimefield_value(since)
    bucket = f"substr(CAST(finished_at AS text), 1, {HOUR})"
    sql = (
        f"SELECT {bucket}, status, count(*) FROM execution_execution "
        f"WHERE finished_at IS NOT NULL AND finished_at >= %s GROUP BY {bucket}, status"
    )
    return [Bucket(_beginning(text), status, count) for text, status, count in fetch(sql, [at])]


def started_by_time(schedule_id: int, *, most: int = MOST_ON_A_CALENDAR) -> list[Bucket]:
    """Count the last `most` executions of a schedule, by status and by the ten minutes (UTC) of their start.

    The periods are short so that a page can add them up to days in the schedule's time zone.
    """
    bucket = f"substr(CAST(started_at AS text), 1, {TEN_MINUTES})"
    sql = (
        f"SELECT {bucket}, status, count(*) FROM (SELECT started_at, status FROM execution_execution "
        f"WHERE schedule_id = %s ORDER BY id DESC LIMIT %s) AS newest GROUP BY {bucket}, status"
    )
    rows = fetch(sql, [schedule_id, most])
    return [Bucket(_beginning(text), status, count) for text, status, count in rows]


def _beginning(text: str) -> datetime:
    """Parse the first characters of a time: an hour (“2026-11-16 03”) or ten minutes (“2026-11-16 03:4”)."""
    whole = f"{text}:00" if len(text) == HOUR else f"{text}0"
    return datetime.fromisoformat(whole.replace("T", " ")).replace(tzinfo=UTC)
