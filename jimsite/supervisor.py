"""Run several processes together: start them, restart those that end, stop them in order."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
BACKOFFS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# A child that ran for this many seconds was healthy: its next exit is not part of a crash loop.
HEALTHY_AFTER = 60.0
PR_SET_PDEATHSIG = 1


def backoff(ends: int) -> float:
    """Return how many seconds to wait before restarting a child that has ended `ends` times in a row."""
    return BACKOFFS[min(ends, len(BACKOFFS)) - 1]


@dataclass
class Child:
    name: str
    argv: list[str]
    # How many seconds the child may take to stop.
    stop_seconds: float = 5.0
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    start_at: float | None = field(default=0.0, init=False)
    ends: int = field(default=0, init=False)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        # In a new session, Ctrl-C reaches only the supervisor, which then stops the children in order.
        self.process = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_stop_with_supervisor()
        )
        self.started_at, self.start_at = time.monotonic(), None

    def bury(self) -> None:
        """Kill the processes that an exited child left behind, and decide when to restart the child."""
        assert self.process
        self.signal(signal.SIGKILL)
        now = time.monotonic()
        self.ends = 1 if now - self.started_at >= HEALTHY_AFTER else self.ends + 1
        self.start_at = now + backoff(self.ends)
        logger.warning(
            "%s %s, restarting in %g s", self.name, _fate(self.process.returncode), backoff(self.ends)
        )

    def signal(self, number: signal.Signals) -> None:
        """Send KILL to the child's process group, other signals only to the child, which passes them on."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


class Supervisor:
    """Runs children in stages. The stages are stopped one after the other, in the given order."""

    def __init__(self, *stages: list[Child]) -> None:
        self.stages = stages
        self.children = [child for stage in stages for child in stage]

    def run(self, *, is_ready: Callable[[], bool], when_ready: Callable[[], None]) -> None:
        """Run until a stop signal arrives, and return when all children have ended.

        When `is_ready` first returns true, call `when_ready`.
        """
        ready = False
        with _signals() as arrived:
            try:
                while True:
                    self._tend()
                    if not ready and is_ready():
                        ready = True
                        when_ready()
                    if arrived(timeout=self._seconds_to_next_start() if ready else 0.1) & STOP_SIGNALS:
                        break
                self._stop(arrived)
            finally:
                self._kill()

    def _tend(self) -> None:
        for child in self.children:
            if child.start_at is None and not child.running:
                child.bury()
            if child.start_at is not None and child.start_at <= time.monotonic():
                child.start()

    def _seconds_to_next_start(self) -> float | None:
        due = [child.start_at for child in self.children if child.start_at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _stop(self, arrived: Callable[..., set[signal.Signals]]) -> None:
        logger.info("stopping; waiting for running steps (press Ctrl-C again to stop at once)")
        for stage in self.stages:
            for child in stage:
                child.signal(signal.SIGTERM)
            deadline = time.monotonic() + max(child.stop_seconds for child in stage)
            while (left := deadline - time.monotonic()) > 0 and any(child.running for child in stage):
                if arrived(timeout=left) & STOP_SIGNALS:
                    return
            for child in stage:
                if child.running:
                    logger.warning("%s did not stop in time, killing it", child.name)
                    child.signal(signal.SIGKILL)

    def _kill(self) -> None:
        for child in self.children:
            child.signal(signal.SIGKILL)
        for child in self.children:
            if child.process:
                child.process.wait()
        logger.info("stopped")


@contextmanager
def _signals() -> Iterator[Callable[..., set[signal.Signals]]]:
    """Yield a function that waits for signals, including SIGCHLD when a child ends, and returns them."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        handlers = {number: signal.signal(number, _noted) for number in STOP_SIGNALS | {signal.SIGCHLD}}
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

        def arrived(*, timeout: float | None) -> set[signal.Signals]:
            if not select.select([reader], [], [], timeout)[0]:
                return set()
            return {signal.Signals(number) for number in reader.recv(4096)}

        try:
            yield arrived
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _noted(number: int, frame: object) -> None:
    """Do nothing, because Python itself writes the number of the signal to the wake-up socket."""


def _stop_with_supervisor() -> Callable[[], None] | None:
    """Return a function that makes Linux stop a child when the supervisor dies, even by kill -9.

    The child calls the function before it starts its program. On other systems, return None.
    """
    if sys.platform != "linux":
        return None
    prctl, supervisor = ctypes.CDLL(None).prctl, os.getpid()

    def ask_for_signal() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != supervisor:
            os._exit(1)

    return ask_for_signal


def _fate(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
