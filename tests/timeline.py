"""A schedule's life on a clock of its own: minute by minute, each execution takes as long as it is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain, repeat
from typing import Any

from execution.loops.scheduler import tick
from execution.models import Execution
from execution.models.attempt import ClaimedTask
from schedules.models import Schedule
from tests.base import NOW, claim, end, fresh, make_worker


def minutes(number: float) -> datetime:
    return NOW + timedelta(minutes=number)


def minute(at: datetime) -> int:
    """The other way round."""
    return round((at - NOW) / timedelta(minutes=1))


class Timeline:
    """Time passes for all schedules there are. The first execution takes the first of these minutes, and
    so on; after the last of them each takes two. One that is asked to stop does so within a minute.
    """

    def __init__(self, takes: Iterable[int] = ()) -> None:
        self.now = 0
        self.worker = make_worker()
        self.takes: Iterator[int] = chain(takes, repeat(2))
        self.working: dict[ClaimedTask, datetime] = {}

    def pass_to(self, minute: int) -> None:
        while self.now < minute:
            self.now += 1
            self.settle()

    def settle(self) -> None:
        """What happens at this minute: executions end, the scheduler ticks, a worker begins what is new."""
        now = minutes(self.now)
        for task, ends_at in list(self.working.items()):
            self._end(task, ends_at, now)
        tick(now, recovering=False)
        for task in claim(self.worker, now=now):
            self.working[task] = now + timedelta(minutes=next(self.takes))

    def _end(self, task: ClaimedTask, ends_at: datetime, now: datetime) -> None:
        execution = Execution.objects.get(pk=task.execution_id or 0)
        asked_at = execution.cancel_requested_at
        if execution.status != Execution.Status.IN_PROGRESS:
            del self.working[task]  # it was terminated: its worker stops without a word
        elif asked_at is not None and asked_at < now:
            del self.working[task]
            end(self.worker, task, status="cancelled", interrupted="cancel", now=now)
        elif ends_at <= now:
            del self.working[task]
            end(self.worker, task, now=now)


def ledger(schedule: Schedule, *, source: str = "auto") -> dict[int, str]:
    """By the minute of its nominal time, what became of each occurrence: "started 5, completed 17"."""
    rows = schedule.occurrences.filter(source=source).order_by("nominal_at")
    told = [(minute(occurrence.nominal_at), _fate(occurrence)) for occurrence in rows]
    assert len(dict(told)) == len(told)
    return dict(told)


def _fate(occurrence: Any) -> str:
    execution = Execution.objects.filter(occurrence=occurrence).first()
    if execution is None:
        assert occurrence.status != "started"
        return f"{occurrence.status}: {occurrence.reason}" if occurrence.reason else occurrence.status
    assert occurrence.status == "started"
    ended = f", {execution.status} {minute(execution.finished_at)}" if execution.finished_at else ""
    return f"started {minute(execution.started_at)}{ended}"


def counters(schedule: Schedule) -> dict[str, Any]:
    """What the schedule counted, as far as there is anything to count."""
    schedule = fresh(schedule)
    counted = {
        "started": schedule.started_count,
        "skipped": schedule.skipped_reasons,
        "missed": schedule.missed_count,
        "dropped": schedule.dropped_count,
        "failed": schedule.failed_count,
    }
    assert sum(schedule.skipped_reasons.values()) == schedule.skipped_count
    return {name: count for name, count in counted.items() if count}
