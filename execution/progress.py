"""The progress of an execution, measured by its steps and by its elapsed time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection

from activities.models import Activity
from database.statements import among, fetch


class ExecutionProgress(NamedTuple):
    """How many steps of an execution are done. A step that will be retried does not count as done."""

    steps: int = 0
    done: int = 0
    running_part: float = 0.0
    """The sum of the fractions (0 to 1) that the running steps report as done."""
    message: str = ""

    @classmethod
    def of(cls, attempts: Iterable[Activity]) -> ExecutionProgress:
        """Return the progress of an execution with these attempts. Only the last attempt of each step counts.

        The attempts of a step must be given in order.
        """
        last = {attempt.line: attempt for attempt in attempts}.values()
        running = [attempt for attempt in last if attempt.status == Activity.Status.IN_PROGRESS]
        return cls(
            steps=len(last),
            done=sum(attempt.is_final for attempt in last),
            running_part=sum(_share(attempt) for attempt in running),
            message=max((attempt.message for attempt in running), default=""),
        )

    @property
    def part(self) -> float:
        """Return the fraction of the execution that is done, from 0 to 1."""
        return min((self.done + self.running_part) / self.steps, 1.0) if self.steps else 0.0


def progress_by_root(roots: Sequence[int]) -> Mapping[int, ExecutionProgress]:
    """Return a dict from root activity id to the progress of its execution, read with one query."""
    if not roots:
        return {}
    theirs, params = among("parent_id", roots)
    least = "LEAST" if connection.vendor == "postgresql" else "min"
    share = f"1.0 * {least}(progress_done, progress_total) / progress_total"
    rows = fetch(
        "SELECT parent_id, count(DISTINCT line), "
        "count(DISTINCT CASE WHEN status IN ('pending', 'in_progress') THEN line END), "
        f"sum(CASE WHEN status = 'in_progress' AND progress_total > 0 THEN {share} END), "
        "max(CASE WHEN status = 'in_progress' THEN message END) "
        f"FROM activities_activity WHERE {theirs} GROUP BY parent_id",
        params,
    )
    return {
        root: ExecutionProgress(steps, steps - left, float(said or 0), words or "")
        for root, steps, left, said, words in rows
    }


def _share(attempt: Activity) -> float:
    return min((attempt.progress_done or 0) / attempt.progress_total, 1.0) if attempt.progress_total else 0.0


@dataclass(frozen=True)
class Timing:
    """The elapsed time of an execution, compared with the usual duration of its schedule's executions."""

    started_at: datetime
    finished_at: datetime | None
    usual: timedelta | None
    now: datetime

    @property
    def elapsed(self) -> timedelta:
        return (self.finished_at or self.now) - self.started_at

    @property
    def ends_at(self) -> datetime | None:
        """Return the expected end; None if it is unknown or the execution has ended."""
        if self.finished_at is not None or self.usual is None:
            return None
        return self.started_at + self.usual

    @property
    def left(self) -> timedelta | None:
        """Return the time until the expected end; None if it is unknown or has passed."""
        return self.ends_at - self.now if self.ends_at is not None and self.ends_at > self.now else None

    @property
    def over(self) -> timedelta | None:
        """Return by how much a running execution has exceeded its usual duration; None if it has not."""
        return self.now - self.ends_at if self.ends_at is not None and self.ends_at <= self.now else None
