"""Threads that run beside the loop of a worker or scheduler. Apps register them; the loop starts them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from django.db import connections

from database.outage import Outage
from database.statements import AWAY

Place = Literal["worker", "scheduler"]
AGAIN_SECONDS = 5.0
STOP_SECONDS = 10.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ThreadContext:
    """What a companion knows about its loop: whether it is healthy, has seen a change, or is about to end."""

    is_well: Callable[[], bool] = lambda: True
    woken: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)


Companion = Callable[[ThreadContext], None]
registered: dict[Place, dict[str, Companion]] = {"worker": {}, "scheduler": {}}


def register(name: str, run: Companion, *, beside: Place) -> None:
    """Register a companion: a function that runs in its own thread beside each worker or scheduler loop.

    `run` must return soon after `stopping` is set in its context. If `run` raises an exception, it is called
    again.
    """
    registered[beside][name] = run


class BackgroundThreads:
    """The threads in which the companions of one loop run."""

    def __init__(self, place: Place, *, is_well: Callable[[], bool]) -> None:
        self.place = place
        self.is_well = is_well
        self.threads: list[tuple[ThreadContext, threading.Thread]] = []

    def start(self) -> None:
        for name, run in registered[self.place].items():
            context = ThreadContext(self.is_well)
            thread = threading.Thread(
                target=_run_until_stopped, args=(name, run, context), name=name, daemon=True
            )
            self.threads.append((context, thread))
            thread.start()

    def wake(self) -> None:
        for context, _ in self.threads:
            context.woken.set()

    def stop(self) -> None:
        for context, _ in self.threads:
            context.stopping.set()
            context.woken.set()
        for _, thread in self.threads:
            thread.join(timeout=STOP_SECONDS)
        self.threads = []


def _run_until_stopped(name: str, run: Companion, context: ThreadContext) -> None:
    outage = Outage(logger, f"{name}: the database is unavailable; the thread is restarted when it is back")
    while not context.stopping.is_set():
        try:
            run(context)
        except AWAY as error:
            outage.note(error)
        except Exception:
            logger.exception("%s failed; it is restarted", name)
        else:
            return
        finally:
            connections.close_all()
        context.stopping.wait(AGAIN_SECONDS)
