"""The tasks that a worker has claimed, until their outcomes are written or they are released."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from database import clock
from execution.children.nursery import Nursery
from execution.models.attempt import ClaimedTask, Finish
from execution.steps.binding import LastResults, bind
from execution.steps.outcome import Reason
from execution.steps.step_type import Isolation

from .lease import Lease
from .seats import RunningTask, Seats

# How many tasks to claim beyond the free seats, at most. A quick step in a child process takes ten times as
# long as one in a thread.
MOST_AHEAD: dict[Isolation, int] = {"thread": 100, "process": 16}
QUICK_SECONDS = 0.02
GROUP_SIZE = 50
UNSTARTED: dict[Reason, str] = {
    "cancel": "cancelled",
    "drain": "worker stopped",
    "lost": "worker lost its lease",
}


class RunningTasks(dict[tuple[int, int], RunningTask]):
    """The tasks that this worker has claimed, by id and attempt.

    Only the worker's loop changes this dictionary. The seats call `hand_in` to report a task that has ended.
    """

    def __init__(self, *, processes: int, threads: int, woken: threading.Event) -> None:
        super().__init__()
        self.seats: dict[Isolation, Seats] = {
            "thread": Seats(threads, self.hand_in),
            "process": Seats(processes, self.hand_in),
        }
        self.ahead: dict[Isolation, int] = {"thread": 0, "process": 0}
        self.ended: deque[RunningTask] = deque()
        self.withdrawn: list[RunningTask] = []
        self._last_results = LastResults()
        self._woken = woken

    @property
    def size(self) -> int:
        return sum(seats.size for seats in self.seats.values())

    @property
    def free(self) -> dict[Isolation, int]:
        return {isolation: seats.size - self._busy(isolation) for isolation, seats in self.seats.items()}

    @property
    def backlog(self) -> int:
        return sum(seats.backlog for seats in self.seats.values())

    @property
    def running(self) -> list[RunningTask]:
        return [run for run in self.values() if run.outcome is None and run not in self.withdrawn]

    def start(
        self, claimed: Sequence[ClaimedTask], *, worker_id: UUID, lease: Lease, nursery: Nursery
    ) -> None:
        bindings = bind(claimed, self._last_results)
        for task in claimed:
            run = RunningTask(task, worker_id, bindings.get(task.pk), lease)
            self[task.pk, task.attempt] = run
            self._seats_of(run).submit(run, nursery)

    def interrupt(self, run: RunningTask, reason: Reason) -> None:
        if run.outcome is not None:
            return
        if self._seats_of(run).withdraw(run):
            self.conclude(run, reason, f"{UNSTARTED[reason]} before the step started")
        else:
            run.context.interrupt(reason)

    def interrupt_started(self, reason: Reason) -> None:
        """Interrupt all tasks that have started. This method can be called from any thread."""
        for run in list(self.values()):
            if not run.is_unstarted:
                run.context.interrupt(reason)

    def conclude(self, run: RunningTask, reason: Reason, why: str) -> None:
        """End an attempt whose step has no outcome: as cancelled if `reason` is “cancel”, else as failed.

        Use this if the step did not start, or does not stop.
        """
        run.outcome = Finish.unfinished(run.task, reason, why, now=clock.estimate()).outcome
        self.hand_in(run)

    def withdraw(self, *, older_than: float) -> None:
        now = time.monotonic()
        early = [run for run in self.values() if run.is_unstarted and now - run.claimed >= older_than]
        self.withdrawn += [run for run in early if self._seats_of(run).withdraw(run)]

    def hand_in(self, run: RunningTask) -> None:
        """Add a task to those that have ended, and wake the loop if the outcome must be written soon.

        Waking the loop costs more than a quick step, so the loop is usually woken once per group of ended
        tasks.
        """
        self.ended.append(run)
        is_urgent = run.task.step.get("on_crash") == "fail"
        if is_urgent or not self.backlog or len(self.ended) >= GROUP_SIZE:
            self._woken.set()

    def settle(self, batch: Sequence[RunningTask]) -> None:
        """Forget the tasks whose outcomes are written, and adapt how many tasks to claim in advance."""
        for run in batch:
            self._forget(run)
        self._adapt(batch)

    def close(self) -> None:
        for seats in self.seats.values():
            seats.close()

    def _busy(self, isolation: Isolation) -> int:
        return sum(run.outcome is None and run.task.isolation == isolation for run in self.values())

    def _seats_of(self, run: RunningTask) -> Seats:
        return self.seats["process" if run.task.isolation == "process" else "thread"]

    def _forget(self, run: RunningTask) -> None:
        """Forget a task, unless the same attempt was postponed or released and has been claimed again."""
        key = run.task.pk, run.task.attempt
        if self.get(key) is run:
            del self[key]

    def _adapt(self, batch: Sequence[RunningTask]) -> None:
        """Adapt how many tasks to claim beyond the free seats: more if tasks are very short, else none."""
        for isolation in self.seats:
            times = [
                run.outcome.finished_at - run.outcome.executed_at
                for run in batch
                if run.outcome and run.task.isolation == isolation and run.task.begun_at is None
            ]
            if times:
                is_quick = sum(times, timedelta()) / len(times) < timedelta(seconds=QUICK_SECONDS)
                more = max(8, self.ahead[isolation] * 2)
                self.ahead[isolation] = min(MOST_AHEAD[isolation], more) if is_quick else 0
