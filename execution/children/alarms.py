"""Callbacks at a given time, called by one thread for all timeouts and kills in a process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import count

logger = logging.getLogger(__name__)


class Alarms:
    """A set of alarms: callbacks that one thread calls at their times. They must not block.

    There are only a few alarms for each running step, so the thread looks at all of them when it wakes.
    Setting and cancelling an alarm is then only a dictionary write, which pays off because few steps ever
    reach their timeout.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._set: dict[int, tuple[float, Callable[[], object]]] = {}
        self._numbers = count()
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, callback: Callable[[], object]) -> int:
        """Call the callback after `seconds`; return a number with which `cancel` can prevent the call."""
        number, at = next(self._numbers), time.monotonic() + seconds
        with self._changed:
            self._set[number] = (at, callback)
            if at < self._wakes_at:
                self._wakes_at = at
                self._changed.notify()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="alarms", daemon=True)
                self._thread.start()
        return number

    def cancel(self, number: int) -> None:
        with self._changed:
            self._set.pop(number, None)

    def _watch(self) -> None:
        while True:
            for callback in self._wait():
                try:
                    callback()
                except Exception:
                    logger.exception("An alarm's callback failed")

    def _wait(self) -> list[Callable[[], object]]:
        with self._changed:
            while (left := self._wakes_at - time.monotonic()) > 0:
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            now = time.monotonic()
            due = sorted((at, number) for number, (at, _) in self._set.items() if at <= now)
            callbacks = [self._set.pop(number)[1] for _, number in due]
            self._wakes_at = min((at for at, _ in self._set.values()), default=float("inf"))
            return callbacks


alarms = Alarms()
