"""JIM's loops in threads of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from django.db import connections

from execution.loops.running import Loop
from execution.loops.scheduler import SchedulerLoop
from execution.loops.worker import WorkerLoop
from tests.waiting import PATIENCE_SECONDS

L = TypeVar("L", bound=Loop)


def work_until_idle(*, processes: int = 1, threads: int = 4) -> None:
    """A worker in this very thread, until nothing is ready or running."""
    WorkerLoop(processes=processes, threads=threads, until_idle=True).run()


@contextmanager
def running(loop: L) -> Iterator[L]:
    """Stops it with the block; whatever ended it before is raised here."""
    failures: list[BaseException] = []

    def body() -> None:
        try:
            loop.run()
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


@contextmanager
def running_worker(*, processes: int = 1, threads: int = 4) -> Iterator[WorkerLoop]:
    with running(WorkerLoop(processes=processes, threads=threads)) as loop:
        yield loop


def has_looked(loop: WorkerLoop) -> bool:
    """Whether it has asked for tasks: what comes later must wake it."""
    return loop.claimed_at.year > 1


@contextmanager
def running_scheduler() -> Iterator[SchedulerLoop]:
    with running(SchedulerLoop()) as loop:
        yield loop
