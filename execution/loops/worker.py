"""The worker's loop: write what has ended, see what was cancelled, claim, else sleep."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import connection, connections

from database import clock
from database.outage import Outage
from database.statements import AWAY
from database.wake import Watch
from execution.children.lifeline import Lifeline
from execution.children.nursery import Nursery
from execution.models import Worker, WorkerTask
from execution.models.attempt import Finish, Held
from execution.models.task import WorkerTaskQuerySet
from execution.queue.handover import Freed
from execution.steps.binding import LastResults, bind
from execution.steps.outcome import Reason
from execution.steps.step_type import Isolation

from . import recorder, recovery
from .companions import Company
from .finishing import finish, still_held
from .housekeeping import keep_house
from .lease import Lease, uptime
from .running import wait_for_database
from .seats import Run, Seats

logger = logging.getLogger(__name__)

# A quick step in a child process takes ten times as long as one in a thread.
MOST_AHEAD: dict[Isolation, int] = {"thread": 100, "process": 16}
AHEAD_SECONDS = 0.25
# While more outcomes are on their way, those that are there wait for them: one transaction for all.
GROUP_SECONDS = 0.02
GROUP_SIZE = 50
# So long after news: most are of the queue, and what has just been claimed is better ended first.
LOOK_SECONDS = 0.1
QUICK_SECONDS = 0.02
SAID_SECONDS = 0.25
HOUSEKEEPING_SECONDS = 60
STARVED_SECONDS = 600
# How long what was killed may take to be gone.
END_SECONDS = 2
RETRY_SECONDS = 1
UNSTARTED: dict[Reason, str] = {
    "cancel": "cancelled",
    "drain": "worker stopped",
    "lost": "worker lost its lease",
}


class WorkerLoop:
    """One worker process. `run()` returns whether it wants to be started again, as a new process."""

    def __init__(
        self, *, processes: int, threads: int, pools: Sequence[str] = (), until_idle: bool = False
    ) -> None:
        self.pools = tuple(pools)
        self.until_idle = until_idle
        self.seats: dict[Isolation, Seats] = {
            "thread": Seats(threads, self._outcome),
            "process": Seats(processes, self._outcome),
        }
        self.runs: dict[tuple[int, int], Run] = {}
        self.ended: deque[Run] = deque()
        self.unwritten: list[Run] = []
        self.claimed_at = datetime.min.replace(tzinfo=UTC)
        self.is_doubtful = False
        self.withdrawn: list[Run] = []
        self.may_hold_strays = False
        self.last_results = LastResults()
        self.ahead: dict[Isolation, int] = {"thread": 0, "process": 0}
        self.buried: uuid.UUID | None = None
        self.wants_restart = False
        self.has_told_of_clock = False
        self.outage = Outage(
            logger, "the database is away: running steps go on, their outcomes are kept until it is back"
        )
        self.missed_beats = Outage(
            logger, "a beat failed, the next one is tried soon; tasks are kept until the lease ends"
        )
        self.unsaid = Outage(logger, "this worker could not say that it stops; its lease will end by itself")
        self.stopping = threading.Event()
        self.closed = threading.Event()
        self.woken = threading.Event()
        self.watch = Watch("jim_tasks", self._changed)
        self.company = Company("worker", is_well=self._is_well)
        self.changed_at: float | None = 0.0
        self.last_look = self.last_said = self.last_expiry = self.wrote_at = 0.0
        self.last_housekeeping = time.monotonic()
        self.deadline: float | None = None

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
        """From another thread: drain, then end. The second time: do not wait for the steps."""
        self.wants_restart = False
        self.deadline = 0.0 if self.stopping.is_set() else time.monotonic() + settings.JIM_GRACE_SECONDS
        self.stopping.set()
        self.woken.set()

    def _open(self) -> bool:
        """False: it was asked to stop before the database let it begin."""
        while not self._arrive():
            if self.stopping.wait(RETRY_SECONDS):
                return False
        self.beats = threading.Thread(target=self._beat, name="beat", daemon=True)
        self.beats.start()
        self.company.start()
        self.watch.start()
        return True

    def _arrive(self) -> bool:
        try:
            recovery.bury_proven_dead(clock.now())
            recovery.recover(clock.now())
            self._register()
        except AWAY as error:
            self.outage.note(error)
            connection.close()
            return False
        self.outage.is_over()
        return True

    def _register(self) -> None:
        """A new id at each boot, and after a burial: nothing of the old one counts any more."""
        worker_id = uuid.uuid4()
        seats = sum(seats.size for seats in self.seats.values())
        lifeline, lease, asked_at = Lifeline(worker_id), Lease(), uptime()
        try:
            worker = Worker.objects.register(id=worker_id, pools=self.pools, seats=seats, now=clock.now())
        except BaseException:
            lifeline.release()  # the answer may be all that was lost
            raise
        lease.renew(asked_at=asked_at, seconds=settings.JIM_LEASE_SECONDS)
        self.place, self.lifeline = (worker, lease), lifeline
        self.nursery = Nursery(keep_fds=(self.lifeline.fd,))
        logger.info("worker %s is ready: %d seats", worker_id, seats)

    @property
    def worker(self) -> Worker:
        return self.place[0]

    @property
    def lease(self) -> Lease:
        """One object per registration: what was claimed before a burial has nothing of the next lease."""
        return self.place[1]

    def _pass(self, *, claiming: bool) -> None:
        """One turn of the loop; if the database is away, what runs goes on and what ended is kept."""
        self.woken.clear()
        try:
            if self.buried == self.worker.pk:
                self._reincarnate()
            self._tell()
            self._give_back()
            self._free_reserved_seats()
            # Before outcomes are written: cancellations are heard even if the database refuses those.
            self._look_after()
            busy = self._flush(claiming=claiming)
            self._keep_house(is_idle=not busy and not self.runs)
            if self._backlog or (busy and self.runs):
                # What is there to claim has been claimed: outcomes, or somebody's news, come next.
                self.woken.wait(GROUP_SECONDS)
            elif not busy and not self.ended:
                self._rest()
            self.outage.is_over()
        except AWAY as error:
            self.outage.note(error)
            connection.close()
            self.closed.wait(RETRY_SECONDS)

    def _flush(self, *, claiming: bool) -> int:
        """Writes the outcomes that have come in and claims for the seats they left, in one transaction."""
        while self.ended:
            self.unwritten.append(self.ended.popleft())
        batch = self.unwritten
        try:
            claimed = self._finish(batch, claiming=claiming) if batch else self._claim() if claiming else []
            if not batch:
                self._start(claimed)
        except AWAY:
            # Perhaps it was carried out, and only the answer was lost.
            self.is_doubtful, self.may_hold_strays = bool(batch), claiming
            raise
        self.unwritten, self.is_doubtful = [], False
        if busy := len(batch) + len(claimed):
            self.wrote_at = time.monotonic()
        for run in batch:
            self._forget(run)
        self._adapt(batch)
        return busy

    def _adapt(self, batch: Sequence[Run]) -> None:
        """Claiming ahead of free seats pays only while tasks are shorter than a claim."""
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

    def _finish(self, batch: Sequence[Run], *, claiming: bool) -> list[Held]:
        claimed: list[Held] = []
        for worker_id in {run.worker_id for run in batch}:
            runs = [run for run in batch if run.worker_id == worker_id]
            recorder.write([run.said for run in runs], worker_id=worker_id)
            finishes = [_with_last_words(run) for run in runs]
            if self.is_doubtful:
                finishes = still_held(finishes, worker_id=worker_id)
            is_own = worker_id == self.worker.pk
            then = self._claim if claiming and is_own else _nothing
            claimed += finish(finishes, worker_id=worker_id, now=clock.now(), then=then, start=self._start)
        return claimed

    def _tell(self) -> None:
        """Output, items and progress of what is running."""
        if time.monotonic() - self.last_said < SAID_SECONDS:
            return
        self.last_said = time.monotonic()
        runs = [run for run in self.runs.values() if run.worker_id == self.worker.pk and not run.is_unstarted]
        refused = recorder.write([run.said for run in runs], worker_id=self.worker.pk)
        for run in runs:
            if run.task.activity_id in refused:
                self._interrupt(run, "lost")

    def _give_back(self) -> None:
        """What was claimed too early, or by a transaction whose answer was lost."""
        if self.may_hold_strays:
            self._release_strays()
        if self.runs:
            self._withdraw(older_than=0 if self.stopping.is_set() else AHEAD_SECONDS)
            self._release()

    def _look_after(self) -> None:
        """Asks steps to stop that were cancelled or taken away."""
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
                self._interrupt(run, "lost")
            elif held[key] is not None:
                self._interrupt(run, "cancel")
        self._give_up_on_deaf_steps()

    def _free_reserved_seats(self) -> None:
        """No scheduler is needed for the queue to go on after a direct request whose process is gone."""
        if time.monotonic() - self.last_expiry > settings.JIM_LEASE_SECONDS / 12:
            self.last_expiry = time.monotonic()
            recovery.expire_reservations(clock.now())

    def _interrupt(self, run: Run, reason: Reason) -> None:
        if run.outcome is not None:
            return
        if self._seats_of(run).withdraw(run):
            self._conclude(run, reason, f"{UNSTARTED[reason]} before it started")
        else:
            run.context.interrupt(reason)

    def _conclude(self, run: Run, reason: Reason, why: str) -> None:
        """Ends an attempt in place of its step."""
        run.outcome = Finish.unfinished(run.task, reason, why, now=clock.estimate()).outcome
        self._outcome(run)

    def _give_up_on_deaf_steps(self) -> None:
        """A function in a thread cannot be killed: if it ignores its token, this process is replaced."""
        patience = max(settings.JIM_GRACE_SECONDS, settings.JIM_KILL_SECONDS + END_SECONDS)
        for run in self._running():
            since = run.context.interrupted_at
            is_deaf = since is not None and time.monotonic() - since > patience
            if is_deaf and not self.stopping.is_set():
                logger.error(
                    "step %s ignores its interruption; this worker drains and restarts", run.task.name
                )
                self.stop()
                self.wants_restart = True

    def _claim(self, freed: Freed | None = None) -> list[Held]:
        self.claimed_at = clock.now()
        if not self.lease.is_good:
            return []
        free = {isolation: seats.size - self._busy(isolation) for isolation, seats in self.seats.items()}
        return WorkerTask.objects.claim(
            self.worker,
            seats=free,
            ahead=self.ahead,
            pools=self.pools,
            now=self.claimed_at,
            freed=freed,
            clock=clock.estimate,
        )

    @property
    def _backlog(self) -> int:
        return sum(seats.backlog for seats in self.seats.values())

    def _busy(self, isolation: Isolation) -> int:
        return sum(run.outcome is None and run.task.isolation == isolation for run in self.runs.values())

    def _start(self, claimed: Sequence[Held]) -> None:
        bindings = bind(claimed, self.last_results)
        for task in claimed:
            run = Run(task, self.worker.pk, bindings.get(task.pk), self.lease)
            self.runs[task.pk, task.attempt] = run
            self._seats_of(run).submit(run, self.nursery)

    def _forget(self, run: Run) -> None:
        """Unless the same attempt was claimed again since: it was put off, or given back."""
        key = run.task.pk, run.task.attempt
        if self.runs.get(key) is run:
            del self.runs[key]

    def _seats_of(self, run: Run) -> Seats:
        return self.seats["process" if run.task.isolation == "process" else "thread"]

    def _is_ready(self) -> bool:
        return WorkerTask.objects.is_claimable(pools=self.pools, now=clock.now())

    def _withdraw(self, *, older_than: float) -> None:
        now = time.monotonic()
        early = [run for run in self.runs.values() if run.is_unstarted and now - run.claimed >= older_than]
        self.withdrawn += [run for run in early if self._seats_of(run).withdraw(run)]

    def _release(self) -> None:
        """Gives back what was withdrawn; what is being cancelled meanwhile ends here."""
        if not self.withdrawn:
            return
        self.ahead = dict.fromkeys(self.ahead, 0)
        released = WorkerTask.objects.release([run.task for run in self.withdrawn], worker_id=self.worker.pk)
        for run in self.withdrawn:
            if run.task.pk in released:
                del self.runs[run.task.pk, run.task.attempt]
            else:
                self._conclude(run, "cancel", "cancelled before it started")
        self.withdrawn = []

    def _release_strays(self) -> None:
        strays = [Held.of(task) for task in self._mine() if (task.pk, task.attempt) not in self.runs]
        released = WorkerTask.objects.release(strays, worker_id=self.worker.pk)
        now, why = clock.now(), "cancelled before it started"
        kept = [Finish.unfinished(held, "cancel", why, now=now) for held in strays if held.pk not in released]
        if kept:
            finish(kept, worker_id=self.worker.pk, now=now)
        self.may_hold_strays = False

    def _mine(self) -> WorkerTaskQuerySet:
        return WorkerTask.objects.processing().filter(worker=self.worker.pk)

    def _keep_house(self, *, is_idle: bool) -> None:
        """One small batch per turn of the loop, so that no step waits for it."""
        waited = time.monotonic() - self.last_housekeeping
        if waited > (HOUSEKEEPING_SECONDS if is_idle else STARVED_SECONDS) and not keep_house(clock.now()):
            self.last_housekeeping = time.monotonic()

    def _rest(self) -> None:
        if self.until_idle and not self.runs and not self._is_ready():
            self.stop()
        else:
            self.woken.wait(min(self._patience(), self._seconds_to_next_task()))

    def _patience(self) -> float:
        if not self.runs:
            return settings.JIM_POLL_SECONDS
        if self._is_echo():
            return GROUP_SECONDS
        return SAID_SECONDS if self.changed_at is None else LOOK_SECONDS

    def _seconds_to_next_task(self) -> float:
        """Until a retry's time comes; or a task's whose clock is ahead of ours by an instant.

        Seen from the claim: what has become ready since then must not fall between the two.
        """
        at = WorkerTask.objects.queued_later(pools=self.pools, now=self.claimed_at)
        return math.inf if at is None else max(0, (at - clock.now()).total_seconds())

    def _reincarnate(self) -> None:
        """Somebody buried this worker: its steps run elsewhere by now, so they end here without a trace."""
        logger.error("worker %s was buried; its steps are ended and it registers anew", self.worker.pk)
        for run in list(self.runs.values()):
            self._interrupt(run, "lost")
        self.nursery.close()
        former = self.lifeline
        self._register()
        former.drop()

    def _drain(self) -> None:
        """No more claims; steps may end within the grace period, then they are ended and queued again."""
        logger.info("worker %s stops: no more tasks are taken", self.worker.pk)
        self.changed_at = 0.0
        self._withdraw(older_than=0)
        while self._running() and time.monotonic() < (self.deadline or 0):
            self._pass(claiming=False)
        for run in self._running():
            self._interrupt(run, "drain")
        hard = time.monotonic() + settings.JIM_KILL_SECONDS + END_SECONDS
        while self._running() and time.monotonic() < hard:
            self._pass(claiming=False)
        for run in self._running():
            self._conclude(
                run, run.context.reason or "drain", "worker stopped; the step ignored its interruption"
            )
        while (self.runs or self.may_hold_strays) and time.monotonic() < hard + settings.JIM_LEASE_SECONDS:
            self._pass(claiming=False)

    def _running(self) -> list[Run]:
        return [run for run in self.runs.values() if run.outcome is None and run not in self.withdrawn]

    def _close(self) -> None:
        self.closed.set()
        self.watch.stop()
        self.company.stop()
        for seats in self.seats.values():
            seats.close()
        self.nursery.close()
        try:
            self.worker.stop(clock.now())
            self.lifeline.drop()
        except AWAY as error:
            self.unsaid.note(error)
        self.beats.join(timeout=5)

    def _beat(self) -> None:
        """On its own thread and connection, so that nothing else that is slow costs the lease."""
        try:
            while not self.closed.wait(settings.JIM_LEASE_SECONDS / 12):
                self._beat_once()
        finally:
            connections.close_all()

    def _beat_once(self) -> None:
        # Both at once: they change together, in another thread.
        (worker, lease), asked_at = self.place, uptime()
        try:
            clock.sync()
            if worker.beat(clock.now(), clock_skew=clock.skew()):
                lease.renew(asked_at=asked_at, seconds=settings.JIM_LEASE_SECONDS)
                self._tell_of_clock()
            elif worker is self.worker and not self.closed.is_set():
                lease.end()
                self._end_what_began()
                self.buried = worker.pk
                self.woken.set()
            self.missed_beats.is_over()
        except Exception as error:
            self.missed_beats.note(error)
            connection.close()

    def _end_what_began(self) -> None:
        """At once, even if the loop waits for the database. It withdraws the others."""
        for run in list(self.runs.values()):
            if not run.is_unstarted:
                run.context.interrupt("lost")

    def _tell_of_clock(self) -> None:
        """Once each time that it goes wrong."""
        trouble = clock.trouble(clock.skew() or timedelta(0))
        if trouble and not self.has_told_of_clock:
            logger.warning(
                "the clock of this host is %s: JIM goes by the database's, programs and logs here do not; "
                "have it set by NTP (chrony, systemd-timesyncd)",
                trouble,
            )
        self.has_told_of_clock = bool(trouble)

    def _outcome(self, run: Run) -> None:
        """Wakes the loop once per group: waking it for each outcome would cost more than the step."""
        self.ended.append(run)
        is_urgent = run.task.step.get("on_crash") == "fail"
        if is_urgent or not self._backlog or len(self.ended) >= GROUP_SIZE:
            self.woken.set()

    def _is_well(self) -> bool:
        return uptime() - self.lease.asked_at < settings.JIM_LEASE_SECONDS

    def _changed(self) -> None:
        if self.changed_at is None:
            self.changed_at = time.monotonic()
        self.company.wake()
        if not self._backlog and not self._is_echo():
            self.woken.set()

    def _is_echo(self) -> bool:
        """SQLite tells of one's own commits too. While steps run, the loop looks again soon by itself."""
        is_recent = time.monotonic() - self.wrote_at < 2 * Watch.BUSY_SECONDS
        return is_recent and bool(self.runs) and connection.vendor == "sqlite"


def _nothing(freed: Freed) -> list[Held]:
    return []


def _with_last_words(run: Run) -> Finish:
    """The last progress message stands as the message of an outcome that has none."""
    finish = run.finish
    if finish.outcome.message or not run.said.message:
        return finish
    return replace(finish, outcome=replace(finish.outcome, message=run.said.message))
