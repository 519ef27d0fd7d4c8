"""The registration of a worker process: its row in the database, its lease, and its heartbeats."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta

from django.conf import settings
from django.db import connection, connections

from database import clock
from database.outage import Outage
from database.statements import AWAY
from execution.children.lifeline import Lifeline
from execution.children.nursery import Nursery
from execution.models import Worker

from .lease import Lease, uptime
from .runs import RunningTasks

logger = logging.getLogger(__name__)


class Registration:
    """The registration of this worker process.

    The worker's loop creates and ends the registration; a separate thread sends the heartbeats.
    """

    place: tuple[Worker, Lease]
    lifeline: Lifeline
    nursery: Nursery

    def __init__(self, *, pools: Sequence[str], runs: RunningTasks, woken: threading.Event) -> None:
        self.pools = tuple(pools)
        self._runs = runs
        self._woken = woken
        self._buried: uuid.UUID | None = None
        self._has_told_of_clock = False
        self._missed_beats = Outage(
            logger, "a heartbeat failed and is tried again soon; tasks are kept until the lease ends"
        )
        self._unsaid = Outage(logger, "this worker could not report that it stops; its lease will run out")
        self._closed = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="beat", daemon=True)

    @property
    def worker(self) -> Worker:
        return self.place[0]

    @property
    def lease(self) -> Lease:
        """Return the lease of this registration, which does not cover tasks of earlier registrations."""
        return self.place[1]

    @property
    def is_buried(self) -> bool:
        return self._buried == self.worker.pk

    def is_well(self) -> bool:
        return uptime() - self.lease.asked_at < settings.JIM_LEASE_SECONDS

    def register(self) -> None:
        """Register with a new id, at startup or after this worker was marked as dead."""
        worker_id, seats = uuid.uuid4(), self._runs.size
        lifeline, lease, asked_at = Lifeline(worker_id), Lease(), uptime()
        try:
            worker = Worker.objects.register(id=worker_id, pools=self.pools, seats=seats, now=clock.now())
        except BaseException:
            lifeline.release()  # the row may exist: perhaps only the answer was lost
            raise
        lease.renew(asked_at=asked_at, seconds=settings.JIM_LEASE_SECONDS)
        self.place, self.lifeline = (worker, lease), lifeline
        self.nursery = Nursery(keep_fds=(self.lifeline.fd,))
        logger.info("worker %s is ready: %d seats", worker_id, seats)

    def register_anew(self) -> None:
        self.nursery.close()
        former = self.lifeline
        self.register()
        former.drop()

    def start_beating(self) -> None:
        self._beats.start()

    def stop_beating(self) -> None:
        self._closed.set()

    def leave(self) -> None:
        self.nursery.close()
        try:
            self.worker.stop(clock.now())
            self.lifeline.drop()
        except AWAY as error:
            self._unsaid.note(error)
        self._beats.join(timeout=5)

    def _beat(self) -> None:
        """Send heartbeats, on a separate thread and connection, so that slow work cannot delay them."""
        try:
            while not self._closed.wait(settings.JIM_LEASE_SECONDS / 12):
                self.beat_once()
        finally:
            connections.close_all()

    def beat_once(self) -> None:
        # Read together, as another thread changes them together.
        (worker, lease), asked_at = self.place, uptime()
        try:
            clock.sync()
            if worker.beat(clock.now(), clock_skew=clock.skew()):
                lease.renew(asked_at=asked_at, seconds=settings.JIM_LEASE_SECONDS)
                self._tell_of_clock()
            elif worker is self.worker and not self._closed.is_set():
                lease.end()
                # Not left to the loop, which may be waiting for the database. The loop withdraws unstarted
                # tasks.
                self._runs.interrupt_started("lost")
                self._buried = worker.pk
                self._woken.set()
            self._missed_beats.is_over()
        except Exception as error:
            self._missed_beats.note(error)
            connection.close()

    def _tell_of_clock(self) -> None:
        """Log one warning each time that the clock of this host goes wrong."""
        trouble = clock.trouble(clock.skew() or timedelta(0))
        if trouble and not self._has_told_of_clock:
            logger.warning(
                "the clock of this host is %s: JIM uses the database's clock, but programs and logs on this "
                "host do not; synchronise the clock by NTP (chrony, systemd-timesyncd)",
                trouble,
            )
        self._has_told_of_clock = bool(trouble)
