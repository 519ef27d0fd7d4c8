"""Read in one statement whether schedulers and workers are running, and how much work there is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection

from database.statements import fetch, instant
from execution.models.chore import Chore, is_ticking
from execution.models.worker import HOLDS_LEASE

MOST_COUNTED = 1_000
_LIVING = f"execution_worker WHERE {HOLDS_LEASE}"


@dataclass(frozen=True)
class Pulse:
    """The key figures of the system. Executions, tasks and schedules are counted up to `MOST_COUNTED`."""

    now: datetime
    running: int
    queued: int
    overdue: int
    schedules: int
    ticked_at: datetime | None
    workers: int
    seats: int
    beat_at: datetime | None

    @property
    def is_ticking(self) -> bool:
        return is_ticking(Chore(name="tick", last_run_at=self.ticked_at), now=self.now)


def pulse(now: datetime) -> Pulse:
    parts = {
        "running": _some("execution_execution WHERE status = 'in_progress'"),
        "queued": _some("execution_workertask WHERE status = 'queued'"),
        "overdue": _some("schedules_schedule WHERE next_run_at < %(late)s"),
        "schedules": _some("schedules_schedule WHERE status <> 'closed'"),
        "ticked_at": "SELECT last_run_at FROM execution_chore WHERE name = 'tick'",
        "workers": f"SELECT count(*) FROM {_LIVING}",
        "seats": f"SELECT COALESCE(sum(seats), 0) FROM {_LIVING}",
        "beat_at": f"SELECT max(beat_at) FROM {_LIVING}",
    }
    late = now - timedelta(seconds=settings.JIM_OVERDUE_SECONDS)
    times = {"now": now, "late": late}
    sql = f"SELECT {', '.join(f'({part})' for part in parts.values())}"
    [(running, queued, overdue, schedules, ticked, workers, seats, beat)] = fetch(
        sql, {name: connection.ops.adapt_datetimefield_value(at) for name, at in times.items()}
    )
    return Pulse(now, running, queued, overdue, schedules, _at(ticked), workers, seats, _at(beat))


def _some(rows: str) -> str:
    return f"SELECT count(*) FROM (SELECT 1 AS one FROM {rows} LIMIT {MOST_COUNTED}) AS few"


def _at(at: datetime | str | None) -> datetime | None:
    return instant(at) if at else None
