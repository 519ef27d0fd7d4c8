"""One attempt of a task, from its claim to its end."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from activities.models import Activity, Ending
from database.statements import instant
from execution import retry
from execution.queue.order import turn
from execution.steps.context import Work
from execution.steps.outcome import Outcome, Reason
from execution.steps.step_type import Isolation
from schedules import registry

from .brief import whole

if TYPE_CHECKING:
    from .task import WorkerTask

# The statuses after which another attempt of the task can follow.
UNSUCCESSFUL = (Activity.Status.FAILED_WITH_ERROR, Activity.Status.COMPLETE_WITH_ERROR)


class ClaimedTask:
    """A claimed attempt, with the values of its row in the queue. It is not a model instance.

    Thousands of tasks can be claimed in a second; a model instance for each would cost more than the claim
    itself.
    """

    COLUMNS = (
        "id",
        "attempt",
        "activity_id",
        "execution_id",
        "name",
        "isolation",
        "failures",
        "crashes",
        "priority",
        "position",
        "begun_at",
        "step",
    )

    def __init__(self, row: Sequence[Any], claimed_at: datetime) -> None:
        self.pk: int
        self.attempt: int
        self.activity_id: int
        self.execution_id: int | None
        self.name: str
        self.isolation: Isolation
        self.failures: int
        self.crashes: int
        self.begun_at: datetime | str | None
        (
            self.pk,
            self.attempt,
            self.activity_id,
            self.execution_id,
            self.name,
            self.isolation,
            self.failures,
            self.crashes,
            priority,
            position,
            self.begun_at,
            self._step,
        ) = row
        self.claimed_at = claimed_at
        self.turn = turn(priority, position, self.pk)

    @classmethod
    def of(cls, task: WorkerTask) -> ClaimedTask:
        assert task.claimed_at is not None
        return cls(tuple(getattr(task, name) for name in cls.COLUMNS), task.claimed_at)

    @cached_property
    def step(self) -> dict[str, Any]:
        """Return the plan line; empty if the line is damaged, so that the step fails, but not the worker."""
        try:
            step = json.loads(self._step) if isinstance(self._step, str) else self._step
        except ValueError:
            step = None
        return whole(step) if isinstance(step, dict) else {}

    @cached_property
    def work(self) -> Work:
        """Return what the step needs to know about this attempt."""
        step = self.step
        return Work(
            key=step.get("key", ""),
            attempt=self.attempt,
            name=self.name,
            step_type=step.get("step_type", ""),
            config=step.get("config", {}),
            timeout_seconds=step.get("timeout_seconds"),
            max_failed_percent=step.get("max_failed_percent", 100),
            execution_id=self.execution_id,
            schedule_name=step.get("schedule", ""),
            nominal_at=step.get("nominal_at"),
            refs=step.get("refs"),
            time_zone=step.get("time_zone", "UTC"),
            begun_at=None if self.begun_at is None else instant(self.begun_at).isoformat(),
        )


@dataclass(frozen=True)
class Finish:
    """An attempt that a worker has claimed, with the outcome to record for it."""

    task: ClaimedTask
    outcome: Outcome

    @classmethod
    def lost(cls, task: ClaimedTask, *, is_cancelled: bool, now: datetime) -> Finish:
        """Build the outcome of an attempt whose worker was lost.

        The step type can decide how the attempt ended. If it does not, the attempt counts as a crash, and the
        `on_crash` setting of the step decides whether the step is retried.
        """
        usual = cls.unfinished(task, "lost", "worker lost", now=now)
        kind = registry.step_types.get(task.work.step_type)
        status = kind.lost(task.work, is_cancelled=is_cancelled, now=now) if kind else None
        if status is None:
            return usual
        error = "" if status == Activity.Status.COMPLETE else usual.outcome.error
        return cls(
            task, replace(usual.outcome, status=status, error=error, interrupted=None, can_retry=False)
        )

    @classmethod
    def unfinished(cls, task: ClaimedTask, reason: Reason, why: str, *, now: datetime) -> Finish:
        """Build the outcome of an attempt without one: cancelled if `reason` is “cancel”, else failed."""
        is_cancel = reason == "cancel"
        began = task.claimed_at
        outcome = Outcome(
            status=Activity.Status.CANCELLED if is_cancel else Activity.Status.FAILED_WITH_ERROR,
            executed_at=began,
            # Recovery may have read the clock before the attempt was claimed.
            finished_at=max(began, now),
            message=why if is_cancel else "",
            error="" if is_cancel else why,
            interrupted=reason,
            can_retry=True,
        )
        return cls(task, outcome)

    @property
    def is_plain(self) -> bool:
        """Return whether the attempt ends in the same way even if a cancel was requested in the meantime."""
        return self.outcome.interrupted not in ("lost", "drain") and not self.outcome.again_at

    def next(self, now: datetime) -> retry.Next | None:
        """Return when the task is tried again, or why it is not; None if this outcome is never retried."""
        if self.outcome.status not in UNSUCCESSFUL or self.outcome.interrupted == "cancel":
            return None
        budget = retry.Budget.of(self.task.failures, self.task.crashes, self.task.step)
        if self.outcome.interrupted == "lost":
            return retry.after_crash(budget, now=now)
        if self.outcome.interrupted == "drain":
            return retry.after_drain(budget, now=now)
        return retry.after_failure(
            budget,
            error=self.outcome.error,
            can_retry=self.outcome.can_retry,
            chance=random.random(),  # noqa: S311
            now=now,
        )

    def ending(self, *, why_not: str = "", cancelled: bool = False, is_last: bool = True) -> Ending:
        outcome = self.outcome
        status, error = outcome.status, f"{outcome.error}: {why_not}" if why_not else outcome.error
        if cancelled and not self.is_plain:
            status = Activity.Status.CANCELLED
        return Ending(
            self.task.activity_id,
            status,
            outcome.finished_at,
            outcome.executed_at,
            outcome.message,
            error,
            outcome.traceback,
            outcome.result,
            outcome.items_total,
            outcome.items_failed,
            is_last and status in UNSUCCESSFUL,
        )
