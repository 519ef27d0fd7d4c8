"""Running executions, with their progress and their estimated end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from execution import history
from execution.history import Ran
from execution.models import Execution
from execution.progress import ExecutionProgress, Timing, progress_by_root
from schedules.models import Schedule

MOST_SHOWN = 20
# An estimated bar is never full before the end.
MOST_ESTIMATED = 0.95


@dataclass(frozen=True)
class Running:
    execution: Execution
    progress: ExecutionProgress
    usual: timedelta | None
    now: datetime

    @property
    def part(self) -> float:
        """Return the progress, from 0 to 1.

        If the steps have reported none, estimate the progress from the usual duration.
        """
        if self.progress.part > 0 or not self.usual:
            return round(self.progress.part, 2)
        return round(min(self._timing.elapsed / self.usual, MOST_ESTIMATED), 2)

    @property
    def eta(self) -> datetime | None:
        """Return the estimated end, or None if it is unknown or already past."""
        return self._timing.ends_at if self._timing.left is not None else None

    @property
    def is_slow(self) -> bool:
        return self._timing.over is not None

    @property
    def is_late(self) -> bool:
        return self.execution.is_late(self.now)

    @property
    def _timing(self) -> Timing:
        return Timing(self.execution.started_at, None, self.usual, self.now)

    @property
    def change_key(self) -> tuple[Any, ...]:
        """Return all values that the page shows, to detect changes."""
        state = (self.execution.pk, self.execution.state, self.is_slow, self.is_late)
        return (*state, self.progress, self.part, self.eta)


def running(executions: QuerySet[Execution], *, now: datetime) -> list[Running]:
    """Return the oldest MOST_SHOWN of these running executions, with their progress, oldest first."""
    rows = list(executions.defer("plan", "last_result").order_by("pk")[:MOST_SHOWN])
    schedules = sorted({each.schedule_id for each in rows if each.schedule_id is not None})
    ran = history.recent(schedules, count=history.SUCCESSES_JUDGED + MOST_SHOWN)
    return _with_progress(rows, {pk: history.usual_duration(own) for pk, own in ran.items()}, now)


def running_of(schedule: Schedule, ran: Sequence[Ran], *, now: datetime) -> list[Running]:
    """Return the oldest MOST_SHOWN running executions in `ran`, the recent history of a schedule."""
    rows = [_execution(schedule, each) for each in reversed(ran) if each.finished_at is None]
    return _with_progress(rows[:MOST_SHOWN], {schedule.pk: history.usual_duration(ran)}, now)


def _with_progress(
    rows: Sequence[Execution], usual: Mapping[int, timedelta | None], now: datetime
) -> list[Running]:
    progress = progress_by_root([each.activity_id for each in rows])
    unknown = ExecutionProgress()
    return [
        Running(each, progress.get(each.activity_id, unknown), usual.get(each.schedule_id or 0), now)
        for each in rows
    ]


def _execution(schedule: Schedule, ran: Ran) -> Execution:
    """Build an execution that is not saved and has only the fields that pages show."""
    is_asked = ran.state == "cancelling"
    return Execution(
        pk=ran.id,
        schedule=schedule,
        schedule_name=schedule.name,
        activity_id=ran.activity_id,
        cancel_requested_at=ran.started_at if is_asked else None,
        started_at=ran.started_at,
        deadline_at=ran.deadline_at,
    )
