"""The main loop of a forked Python child, which runs functions one by one and reports to the worker."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from django.db import close_old_connections, connections

from execution.loops.lease import Late, Lease
from execution.steps.context import Context, Work
from execution.steps.performing import conclude
from execution.steps.python import call_function

from .channel import Channel

_libc = ctypes.CDLL(None)


def serve(sock: socket.socket) -> NoReturn:
    Server(Channel(sock)).serve()


class Server:
    """The loop in which a child runs functions.

    The object is also the Sink of the functions' contexts: it sends output, progress and items to the worker.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.home = Path.cwd()
        self.environment = dict(os.environ)
        self.threads = threads()
        self.streams = [
            os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            for fd in (1, 2)
        ]
        self.running: Context | None = None
        self.main_is_sending = False
        self.interrupt_waits = False
        self.is_late = False

    def serve(self) -> NoReturn:
        while (message := self.channel.receive()) is not None:
            if "work" in message:
                self.perform(Work(**message["work"]), Lease(message["until"]))
        os._exit(0)

    def perform(self, work: Work, lease: Lease) -> None:
        ctx, self.is_late = Context(work, self), False
        self.tidy()
        outcome = conclude(ctx, lambda: self.run(ctx, lease))
        self.flush()
        close_old_connections()
        if self.is_late:
            self.channel.send({"late": True})
            return
        # Without its times, as the worker's clock measures all steps.
        told = {name: value for name, value in vars(outcome).items() if not name.endswith("_at")}
        self.channel.send({"outcome": told, "reusable": self.is_clean()})

    def tidy(self) -> None:
        """Undo what an earlier function may have changed."""
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = self.streams  # type: ignore[misc]
        os.chdir(self.home)
        signal.signal(signal.SIGTERM, self.interrupted)
        close_old_connections()

    def is_clean(self) -> bool:
        """Return whether the function left nothing behind that could affect the next function.

        This means threads, processes, a timer, an open transaction or a changed environment. The environment
        is not restored instead, because a module that set a variable when it was imported would not be
        imported again to set it.
        """
        return (
            threads() <= self.threads
            and dict(os.environ) == self.environment
            and signal.getitimer(signal.ITIMER_REAL)[0] == 0
            and not has_children()
            and not any(connection.in_atomic_block for connection in connections.all(initialized_only=True))
        )

    def run(self, ctx: Context, lease: Lease) -> object:
        def certain() -> None:
            if not lease.is_good:
                self.is_late = True
                raise Late

        self.running = ctx
        try:
            if self.hears_reason(ctx):
                ctx.check()
            return call_function(ctx, certain=certain)
        finally:
            self.running = None

    def interrupted(self, signum: int, frame: object) -> None:
        """Interrupt the function at SIGTERM if the worker has sent a reason, but only once.

        The function's clean-up code can then run without being interrupted.
        """
        if self.running is None or not self.hears_reason(self.running):
            return
        if self.main_is_sending:
            self.interrupt_waits = True
        else:
            self.running.check()

    def hears_reason(self, ctx: Context) -> bool:
        if ctx.reason is not None:
            return False
        for message in self.channel.received():
            ctx.interrupt(message["interrupt"])
            return True
        return False

    def flush(self) -> None:
        """Flush all buffers, so that printed text is in the pipes before the outcome is sent."""
        for stream in (sys.stdout, sys.stderr, *self.streams):
            with suppress(AttributeError, OSError, ValueError):  # replaced or closed by the function
                stream.flush()
        _libc.fflush(None)

    def output(self, stream: str, lines: list[str]) -> None:
        self.send({"output": [stream, lines]})

    def progress(self, done: int, total: int | None, message: str) -> None:
        self.send({"progress": [done, total, message]})

    def item(self, name: str, outcome: str, message: str) -> None:
        self.send({"item": [name, outcome, message]})

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Interrupts wait meanwhile, as they would leave half a message in the socket."""
        if threading.current_thread() is not threading.main_thread():
            self.channel.send(message)
            return
        self.main_is_sending = True
        try:
            self.channel.send(message)
        finally:
            self.main_is_sending = False
        if self.interrupt_waits and self.running is not None:
            self.interrupt_waits = False
            self.running.check()


def threads() -> set[int]:
    """Return the ids of all threads that can run Python, however they were started."""
    return set(sys._current_frames())


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
