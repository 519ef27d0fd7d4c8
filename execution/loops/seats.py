"""The threads in which claimed tasks run: a fixed number, each taking the next task that was submitted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from uuid import UUID

from django.db import close_old_connections, connections

from database import clock
from execution.children.nursery import Nursery
from execution.models.attempt import ClaimedTask, Finish
from execution.steps.binding import Binding
from execution.steps.context import DOUBT_SECONDS, Context
from execution.steps.outcome import Outcome
from execution.steps.performing import perform, unreported_outcome

from .lease import Lease
from .recorder import StepOutput


class RunningTask:
    """One claimed task in this process, from its claim to its outcome."""

    def __init__(
        self, task: ClaimedTask, worker_id: UUID, binding: Binding | None = None, lease: Lease | None = None
    ) -> None:
        self.task = task
        self.worker_id = worker_id
        self.said = StepOutput(task.activity_id, clock.estimate)
        self.context = Context(task.work, self.said, binding, lease)
        self.claimed = time.monotonic()
        self.outcome: Outcome | None = None
        self._turn = threading.Lock()

    def take(self) -> bool:
        """Return True to the first caller, and False to all others.

        The first caller is the seat that starts the task, or the loop that withdraws the task.
        """
        return self._turn.acquire(blocking=False)

    @property
    def is_unstarted(self) -> bool:
        return not self._turn.locked()

    @property
    def finish(self) -> Finish:
        """Return the task with its outcome. If the outcome has no message, use the last progress message."""
        assert self.outcome is not None
        if self.outcome.message or not self.said.message:
            return Finish(self.task, self.outcome)
        return Finish(self.task, replace(self.outcome, message=self.said.message))


class Seats:
    def __init__(self, size: int, done: Callable[[RunningTask], None]) -> None:
        self.size = size
        self._done = done
        self._queue: SimpleQueue[tuple[RunningTask, Nursery] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._submitted = 0
        self._passed_over = 0

    @property
    def backlog(self) -> int:
        """Return how many tasks wait for a seat, leaving out those that were withdrawn."""
        return max(0, self._queue.qsize() - self._passed_over)

    def withdraw(self, run: RunningTask) -> bool:
        """Withdraw a task; return False if a seat has already started it.

        The withdrawn task stays in the queue of the seats, but no seat runs it.
        """
        with self._lock:
            is_withdrawn = run.take()
            self._passed_over += is_withdrawn
        return is_withdrawn

    def submit(self, run: RunningTask, nursery: Nursery) -> None:
        with self._lock:
            self._submitted += 1
            if self._threads < min(self._submitted, self.size):
                self._threads += 1
                threading.Thread(target=self._sit, name=f"seat-{self._threads}", daemon=True).start()
        self._queue.put((run, nursery))

    def close(self) -> None:
        for _ in range(self._threads):
            self._queue.put(None)

    def _sit(self) -> None:
        while work := self._queue.get():
            run, nursery = work
            self._wait_for_certainty(run)
            if run.take():
                self._perform(run, nursery)
            else:
                with self._lock:
                    self._passed_over -= 1
            with self._lock:
                self._submitted -= 1
        connections.close_all()

    def _wait_for_certainty(self, run: RunningTask) -> None:
        """Wait until the lease of the task is valid, or until the loop has withdrawn the task.

        A process that was frozen must not start tasks that it has lost. The loop withdraws tasks that have
        not started for a while, to release them or because they are lost. The lease is checked once more when
        the step itself starts, as that can be much later.
        """
        while run.is_unstarted and not run.context.lease.is_good:
            time.sleep(DOUBT_SECONDS)

    def _perform(self, run: RunningTask, nursery: Nursery) -> None:
        """Run the task and set its outcome, whatever happens: without an outcome, the task never ends."""
        try:
            run.outcome = perform(
                run.task.work, run.said, nursery=nursery, context=run.context, clock=clock.estimate
            )
            close_old_connections()
        except BaseException as error:
            run.outcome = run.outcome or unreported_outcome(run.context, error)
        self._done(run)
