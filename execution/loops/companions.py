"""Threads beside a loop, which is not theirs: apps register them, the loop starts and stops them."""

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
class Life:
    """What a companion sees of its loop: whether it fares well, that something changed, that it ends."""

    is_well: Callable[[], bool] = lambda: True
    woken: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)


Run = Callable[[Life], None]
registered: dict[Place, dict[str, Run]] = {"worker": {}, "scheduler": {}}


def register(name: str, run: Run, *, beside: Place) -> None:
    """`run` returns soon after `stopping` is set; one that raises is started again."""
    registered[beside][name] = run


class Company:
    """The companions of one loop."""

    def __init__(self, place: Place, *, is_well: Callable[[], bool]) -> None:
        self.place = place
        self.is_well = is_well
        self.lives: list[tuple[Life, threading.Thread]] = []

    def start(self) -> None:
        for name, run in registered[self.place].items():
            life = Life(self.is_well)
            thread = threading.Thread(target=_live, args=(name, run, life), name=name, daemon=True)
            self.lives.append((life, thread))
            thread.start()

    def wake(self) -> None:
        for life, _ in self.lives:
            life.woken.set()

    def stop(self) -> None:
        for life, _ in self.lives:
            life.stopping.set()
            life.woken.set()
        for _, thread in self.lives:
            thread.join(timeout=STOP_SECONDS)
        self.lives = []


def _live(name: str, run: Run, life: Life) -> None:
    outage = Outage(logger, f"{name}: the database is away, it starts again when that is back")
    while not life.stopping.is_set():
        try:
            run(life)
        except AWAY as error:
            outage.note(error)
        except Exception:
            logger.exception("%s broke; it starts again", name)
        else:
            return
        finally:
            connections.close_all()
        life.stopping.wait(AGAIN_SECONDS)
