"""The worker's loop: write outcomes, notice cancellations, claim tasks, or sleep.

`Registration` is this process as others see it; `RunningTasks` contains the tasks that it has claimed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from django.conf import settings
from django.db import connection

from database import clock
from database.outage import Outage
from database.statements import AWAY
from database.wake import Watch
from execution.models import Worker, WorkerTask
from execution.models.attempt import ClaimedTask, Finish
from execution.models.task_queryset import WorkerTaskQuerySet
from execution.queue.claim import claim
from execution.queue.request import ClaimRequest

from . import recorder, recovery
from .companions import BackgroundThreads
from .finishing import finish, still_held
from .housekeeping import keep_house
from .registration import Registration
from .running import wait_for_database
from .runs import RunningTasks
from .seats import RunningTask

logger = logging.getLogger(__name__)

AHEAD_SECONDS = 0.25
# While more outcomes are about to come, the loop waits this long, to write them all in one transaction.
GROUP_SECONDS = 0.02
# How long after a change to look for cancellations: most changes concern only the queue, and tasks that were
# just claimed should end first.
LOOK_SECONDS = 0.1
SAID_SECONDS = 0.25
HOUSEKEEPING_SECONDS = 60
STARVED_SECONDS = 600
# How long killed processes may take to be gone.
END_SECONDS = 2
RETRY_SECONDS = 1


class WorkerLoop:
    """The loop of one worker process. `run()` returns whether to start the worker again as a new process."""

    def __init__(
        self, *, processes: int, threads: int, pools: Sequence[str] = (), until_idle: bool = False
    ) -> None:
        self.pools = tuple(pools)
        self.until_idle = until_idle
        self.woken = threading.Event()
        self.runs = RunningTasks(processes=processes, threads=threads, woken=self.woken)
        self.registration = Registration(pools=self.pools, runs=self.runs, woken=self.woken)
        self.unwritten: list[RunningTask] = []
        self.claimed_at = datetime.min.replace(tzinfo=UTC)
        self.is_doubtful = False
        self.may_hold_strays = False
        self.wants_restart = False
        self.outage = Outage(
            logger,
            "the database is unavailable: running steps continue, their outcomes are kept until it is back",
        )
        self.stopping = threading.Event()
        self.watch = Watch("jim_tasks", self._changed)
        self.background = BackgroundThreads("worker", is_well=self.registration.is_well)
        self.changed_at: float | None = 0.0
        self.last_look = self.last_said = self.last_expiry = self.wrote_at = 0.0
        self.last_housekeeping = time.monotonic()
        self.deadline: float | None = None

    @property
    def worker(self) -> Worker:
        return self.registration.worker

    def run(self) -> bool:
        wait_for_database(self.stopping)
        if self.stopping.is_set():
            return False
        if not self._open():
            return False
        try:
            while not self.stopping.is_set():
                self._pass(claiming=True)
            self._drain()
        finally:
            self._close()
        return self.wants_restart

    def stop(self) -> None:
        """Let the worker drain and end. If called a second time, do not wait for running steps.

        This method can be called from another thread.
        """
        self.wants_restart = False
        self.deadline = 0.0 if self.stopping.is_set() else time.monotonic() + settings.JIM_GRACE_SECONDS
        self.stopping.set()
        self.woken.set()

    def _open(self) -> bool:
        """Register this worker and start its threads; return False if it was told to stop before that."""
        while not self._arrive():
            if self.stopping.wait(RETRY_SECONDS):
                return False
        self.registration.start_beating()
        self.background.start()
        self.watch.start()
        return True

    def _arrive(self) -> bool:
        try:
            recovery.bury_proven_dead(clock.now())
            recovery.recover(clock.now())
            self.registration.register()
        except AWAY as error:
            self.outage.note(error)
            connection.close()
            return False
        self.outage.is_over()
        return True

    def _pass(self, *, claiming: bool) -> None:
        """Do one turn of the loop. If the database is unavailable, steps continue and outcomes are kept."""
        self.woken.clear()
        try:
            if self.registration.is_buried:
                self._reincarnate()
            self._tell()
            self._give_back()
            self._free_reserved_seats()
            # Before outcomes are written, so that cancellations arrive even if the database refuses outcomes.
            self._look_after()
            busy = self._flush(claiming=claiming)
            self._keep_house(is_idle=not busy and not self.runs)
            if self.runs.backlog or (busy and self.runs):
                # All that could be claimed has been claimed; wait for outcomes or a wake-up.
                self.woken.wait(GROUP_SECONDS)
            elif not busy and not self.runs.ended:
                self._rest()
            self.outage.is_over()
        except AWAY as error:
            self.outage.note(error)
            connection.close()
            time.sleep(RETRY_SECONDS)

    def _reincarnate(self) -> None:
        """Register again after this worker was marked as dead.

        The running steps are ended, because their tasks may belong to other workers now.
        """
        logger.error("worker %s was marked as dead; it ends its steps and registers again", self.worker.pk)
        for run in list(self.runs.values()):
            self.runs.interrupt(run, "lost")
        self.registration.register_anew()

    def _tell(self) -> None:
        """Store the output, items and progress of running steps."""
        if time.monotonic() - self.last_said < SAID_SECONDS:
            return
        self.last_said = time.monotonic()
        runs = [run for run in self.runs.values() if run.worker_id == self.worker.pk and not run.is_unstarted]
        refused = recorder.write([run.said for run in runs], worker_id=self.worker.pk)
        for run in runs:
            if run.task.activity_id in refused:
                self.runs.interrupt(run, "lost")

    def _give_back(self) -> None:
        """Release tasks that were claimed too early, or in a transaction whose result is not known."""
        if self.may_hold_strays:
            self._release_strays()
        if self.runs:
            self.runs.withdraw(older_than=0 if self.stopping.is_set() else AHEAD_SECONDS)
            self._release()

    def _release_strays(self) -> None:
        strays = [ClaimedTask.of(task) for task in self._mine() if (task.pk, task.attempt) not in self.runs]
        released = WorkerTask.objects.release(strays, worker_id=self.worker.pk)
        now, why = clock.now(), "cancelled before the step started"
        kept = [Finish.unfinished(held, "cancel", why, now=now) for held in strays if held.pk not in released]
        if kept:
            finish(kept, worker_id=self.worker.pk, now=now)
        self.may_hold_strays = False

    def _release(self) -> None:
        """Release the withdrawn tasks, except for those that are being cancelled, which are ended."""
        withdrawn = self.runs.withdrawn
        if not withdrawn:
            return
        self.runs.ahead = dict.fromkeys(self.runs.ahead, 0)
        released = WorkerTask.objects.release([run.task for run in withdrawn], worker_id=self.worker.pk)
        for run in withdrawn:
            if run.task.pk in released:
                del self.runs[run.task.pk, run.task.attempt]
            else:
                self.runs.conclude(run, "cancel", "cancelled before the step started")
        self.runs.withdrawn = []

    def _free_reserved_seats(self) -> None:
        """Free the seats of direct requests whose lease has ended, even if no scheduler is running."""
        if time.monotonic() - self.last_expiry > settings.JIM_LEASE_SECONDS / 12:
            self.last_expiry = time.monotonic()
            recovery.expire_reservations(clock.now())

    def _look_after(self) -> None:
        """Ask steps to stop if their tasks were cancelled or no longer belong to this worker."""
        if not self.runs:
            self.changed_at = None
            return
        now = time.monotonic()
        is_news = self.changed_at is not None and now - self.changed_at >= LOOK_SECONDS
        if not is_news and now - self.last_look < settings.JIM_POLL_SECONDS:
            return
        self.changed_at, self.last_look = None, now
        mine = self._mine()
        held = {
            (pk, attempt): at for pk, attempt, at in mine.values_list("pk", "attempt", "cancel_requested_at")
        }
        for key, run in list(self.runs.items()):
            if key not in held:
                self.runs.interrupt(run, "lost")
            elif held[key] is not None:
                self.runs.interrupt(run, "cancel")
        self._restart_if_step_ignores_cancel()

    def _mine(self) -> WorkerTaskQuerySet:
        return WorkerTask.objects.processing().filter(worker=self.worker.pk)

    def _restart_if_step_ignores_cancel(self) -> None:
        """Restart this process if a step in a thread does not stop when asked: threads cannot be killed."""
        patience = max(settings.JIM_GRACE_SECONDS, settings.JIM_KILL_SECONDS + END_SECONDS)
        for run in self.runs.running:
            since = run.context.interrupted_at
            is_deaf = since is not None and time.monotonic() - since > patience
            if is_deaf and not self.stopping.is_set():
                logger.error(
                    "step %s does not stop although it was asked to; this worker drains and restarts",
                    run.task.name,
                )
                self.stop()
                self.wants_restart = True

    def _flush(self, *, claiming: bool) -> int:
        """Write the outcomes that have arrived, and claim tasks for the free seats.

        If there are outcomes, both happen in one transaction. Return the number of outcomes plus the number
        of claimed tasks.
        """
        while self.runs.ended:
            self.unwritten.append(self.runs.ended.popleft())
        batch = self.unwritten
        try:
            claimed = self._finish(batch, claiming=claiming) if batch else self._claim() if claiming else []
            if not batch:
                self._start(claimed)
        except AWAY:
            # Perhaps the transaction was committed, and only the answer was lost.
            self.is_doubtful, self.may_hold_strays = bool(batch), claiming
            raise
        self.unwritten, self.is_doubtful = [], False
        if busy := len(batch) + len(claimed):
            self.wrote_at = time.monotonic()
        self.runs.settle(batch)
        return busy

    def _finish(self, batch: Sequence[RunningTask], *, claiming: bool) -> list[ClaimedTask]:
        claimed: list[ClaimedTask] = []
        for worker_id in {run.worker_id for run in batch}:
            runs = [run for run in batch if run.worker_id == worker_id]
            recorder.write([run.said for run in runs], worker_id=worker_id)
            finishes = [run.finish for run in runs]
            if self.is_doubtful:
                finishes = still_held(finishes, worker_id=worker_id)
            is_own = worker_id == self.worker.pk
            claims = self._free_seats if claiming and is_own else _no_seats
            claimed += finish(
                finishes, worker_id=worker_id, now=clock.now(), claims=claims, start=self._start
            )
        return claimed

    def _claim(self) -> list[ClaimedTask]:
        request = self._free_seats()
        return claim(request) if request else []

    def _free_seats(self) -> ClaimRequest | None:
        """Return a request for the tasks that this worker can take now; None if its lease may have ended."""
        self.claimed_at = clock.now()
        if not self.registration.lease.is_good:
            return None
        return ClaimRequest(
            self.worker.pk,
            self.pools,
            self.claimed_at,
            free=self.runs.free,
            ahead=self.runs.ahead,
            clock=clock.estimate,
        )

    def _start(self, claimed: Sequence[ClaimedTask]) -> None:
        worker, lease = self.registration.place
        self.runs.start(claimed, worker_id=worker.pk, lease=lease, nursery=self.registration.nursery)

    def _keep_house(self, *, is_idle: bool) -> None:
        """Do one batch of housekeeping if it is due. A batch is small, so that steps do not wait long."""
        waited = time.monotonic() - self.last_housekeeping
        if waited > (HOUSEKEEPING_SECONDS if is_idle else STARVED_SECONDS) and not keep_house(clock.now()):
            self.last_housekeeping = time.monotonic()

    def _rest(self) -> None:
        if self.until_idle and not self.runs and not self._is_ready():
            self.stop()
        else:
            self.woken.wait(min(self._patience(), self._seconds_to_next_task()))

    def _is_ready(self) -> bool:
        return WorkerTask.objects.is_claimable(pools=self.pools, now=clock.now())

    def _patience(self) -> float:
        if not self.runs:
            return settings.JIM_POLL_SECONDS
        if self._is_echo():
            return GROUP_SECONDS
        return SAID_SECONDS if self.changed_at is None else LOOK_SECONDS

    def _seconds_to_next_task(self) -> float:
        """Return in how many seconds the next delayed task will be ready; infinity if there is none.

        A task that has become ready since the last claim counts as well, so that it is not missed.
        """
        at = WorkerTask.objects.queued_later(pools=self.pools, now=self.claimed_at)
        return math.inf if at is None else max(0, (at - clock.now()).total_seconds())

    def _changed(self) -> None:
        """Note that the queue has changed. The thread that watches the database calls this method."""
        if self.changed_at is None:
            self.changed_at = time.monotonic()
        self.background.wake()
        if not self.runs.backlog and not self._is_echo():
            self.woken.set()

    def _is_echo(self) -> bool:
        """Return whether a change is probably this worker's own commit, as SQLite reports these as well."""
        is_recent = time.monotonic() - self.wrote_at < 2 * Watch.BUSY_SECONDS
        return is_recent and bool(self.runs) and connection.vendor == "sqlite"

    def _drain(self) -> None:
        """Stop claiming tasks, and give running steps the grace period to end.

        Steps that are still running after that are interrupted, and their tasks are queued again if they may
        be repeated.
        """
        logger.info("worker %s stops: no more tasks are taken", self.worker.pk)
        self.changed_at = 0.0
        self.runs.withdraw(older_than=0)
        while self.runs.running and time.monotonic() < (self.deadline or 0):
            self._pass(claiming=False)
        for run in self.runs.running:
            self.runs.interrupt(run, "drain")
        hard = time.monotonic() + settings.JIM_KILL_SECONDS + END_SECONDS
        while self.runs.running and time.monotonic() < hard:
            self._pass(claiming=False)
        for run in self.runs.running:
            self.runs.conclude(
                run, run.context.reason or "drain", "worker stopped; the step did not stop when asked"
            )
        while (self.runs or self.may_hold_strays) and time.monotonic() < hard + settings.JIM_LEASE_SECONDS:
            self._pass(claiming=False)

    def _close(self) -> None:
        self.registration.stop_beating()
        self.watch.stop()
        self.background.stop()
        self.runs.close()
        self.registration.leave()


def _no_seats() -> None:
    return None
