"""Snapshots of an execution and its steps, for terminals and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from activities.models import Activity
from execution.models import Execution
from execution.progress import ExecutionProgress, Timing
from text.words import span

from .terminal import CANCELLED, FAILED, on_clock, state, table, when

EXIT_CODES = {
    Execution.Status.COMPLETED.value: 0,
    Execution.Status.FAILED.value: FAILED,
    Execution.Status.CANCELLED.value: CANCELLED,
}
STEPS_MOST = 5_000


@dataclass(frozen=True)
class Snapshot:
    """An execution with the last attempt of each step."""

    execution: Execution
    steps: Sequence[Activity]
    usual: timedelta | None
    now: datetime

    @classmethod
    def of(cls, execution_id: int, *, usual: timedelta | None = None, now: datetime) -> Snapshot:
        """Load a snapshot with only two queries, because snapshots are loaded often."""
        rows = Execution.objects.select_related("activity", "occurrence", "schedule")
        execution = rows.defer("plan", "last_result", "schedule__calendars", "schedule__last_result").get(
            pk=execution_id
        )
        attempts = Activity.objects.filter(parent=execution.activity_id)
        attempts = attempts.defer("traceback", "result", "details").order_by("line", "attempt")
        last = {activity.line: activity for activity in attempts[:STEPS_MOST]}
        return cls(execution, list(last.values()), usual, now)

    @property
    def is_over(self) -> bool:
        return self.execution.finished_at is not None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES.get(self.execution.status, 0)

    def sentence(self) -> str:
        execution, at = self.execution, ExecutionProgress.of(self.steps)
        timing = Timing(execution.started_at, execution.finished_at, self.usual, self.now)
        if not self.is_over:
            usual = f", usually {span(self.usual)}" if self.usual else ""
            left = f", about {span(timing.left)} left" if timing.left else usual
            return f"{at.done} of {at.steps} steps done after {span(timing.elapsed)}{left}"
        why = f": {execution.error}" if execution.error else "."
        return f"“{execution}” {execution.state} after {span(timing.elapsed)}{why}"

    def table(self, *, width: int, most: int = STEPS_MOST) -> Table:
        shown = chosen(self.steps, most=most)
        indexes = sorted({step.step_index or 0 for step in self.steps})
        groups = {index: number for number, index in enumerate(indexes, 1)}
        columns: dict[str, list[str | Text]] = {
            "State": [state(step.status) for step in shown],
            "Step": [Text(step.target_name, style="bold") for step in shown],
            "Group": [str(groups[step.step_index or 0]) for step in shown],
            "Attempt": [str(step.attempt) if step.attempt > 1 else "" for step in shown],
            "Took": [took(step, now=self.now) for step in shown],
            "Progress": [counted(step) for step in shown],
            "Activity": [str(step.pk) for step in shown],
            "Message": [(step.error or step.message).partition("\n")[0] for step in shown],
        }
        drawn = table(columns, width=width, spare=("Group", "Activity", "Progress"))
        if len(shown) < len(self.steps):
            drawn.caption = f"and {len(self.steps) - len(shown):,} more steps"
        return drawn

    def facts(self) -> list[tuple[str, str]]:
        """Return the labels and values that describe the execution."""
        execution, by = self.execution, self.execution.activity
        zone = execution.schedule.zone if execution.schedule else None
        nominal = execution.occurrence.nominal_at if execution.occurrence else None
        source = "by " + (by.initiator_name if by.initiator_type != "schedule" else "the schedule")
        ended = f"{on_clock(execution.finished_at)} UTC" if execution.finished_at else ""
        rows = [
            ("Source", f"{execution.source or 'ad hoc'}, {source}"),
            ("Nominal time", f"{on_clock(nominal, zone)} {zone}" if nominal and zone else ""),
            ("Started", f"{on_clock(execution.started_at)} UTC ({when(execution.started_at, now=self.now)})"),
            ("Ended", ended),
            ("Retry of", f"execution {execution.retry_of_id}" if execution.retry_of_id else ""),
            ("Late", "yes" if execution.is_late(self.now) else ""),
            ("Stopping", execution.cancel_reason if execution.is_cancelling else ""),
        ]
        return [(name, text) for name, text in rows if text]

    def as_json(self) -> dict[str, Any]:
        return facts_of(self.execution, now=self.now) | {
            "usual_seconds": self.usual,
            "steps": [step_facts(step) for step in self.steps],
        }


def chosen(steps: Sequence[Activity], *, most: int) -> Sequence[Activity]:
    """Return at most `most` steps, in plan order.

    Running steps are preferred, then failed ones, then those that ended last.
    """
    if len(steps) <= most:
        return steps
    telling = sorted(steps, key=lambda step: (step.status != "in_progress", not step.failed, _newest(step)))
    kept = {step.pk for step in telling[:most]}
    return [step for step in steps if step.pk in kept]


def _newest(step: Activity) -> float:
    return -step.finished_at.timestamp() if step.finished_at else 0.0


def took(step: Activity, *, now: datetime) -> str:
    if step.executed_at is None:
        return ""
    return span((step.finished_at or now) - step.executed_at)


def counted(step: Activity) -> str:
    if step.progress_done is None:
        return ""
    if not step.progress_total:
        return f"{step.progress_done:,}"
    percent = min(100 * step.progress_done // step.progress_total, 100)
    return f"{step.progress_done:,} of {step.progress_total:,} ({percent} %)"


def facts_of(execution: Execution, *, now: datetime) -> dict[str, Any]:
    by = execution.activity
    return {
        "id": execution.pk,
        "schedule": execution.schedule_name,
        "schedule_id": execution.schedule_id,
        "state": execution.state,
        "is_late": execution.is_late(now),
        "source": execution.source or "ad hoc",
        "initiator": {"type": by.initiator_type, "id": by.initiator_id, "name": by.initiator_name},
        "nominal_at": execution.occurrence.nominal_at if execution.occurrence else None,
        "started_at": execution.started_at,
        "finished_at": execution.finished_at,
        "seconds": (execution.finished_at or now) - execution.started_at,
        "retry_of": execution.retry_of_id,
        "error": execution.error,
        "activity": execution.activity_id,
    }


def step_facts(step: Activity) -> dict[str, Any]:
    return {
        "name": step.target_name,
        "group": step.step_index,
        "line": step.line,
        "status": step.status,
        "attempt": step.attempt,
        "key": step.task_key,
        "started_at": step.executed_at,
        "finished_at": step.finished_at,
        "progress": {"done": step.progress_done, "total": step.progress_total},
        "items": {"total": step.items_total, "failed": step.items_failed},
        "message": step.message,
        "error": step.error,
        "activity": step.pk,
    }
