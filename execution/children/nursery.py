"""The fork servers of a worker, and the processes of its steps.

A worker has threads and database connections, so it never forks. Instead, it asks its fork servers
(nurseries), small processes with one thread that open no connections: one starts programs, the other has
loaded Django and forks Python children. Worker and nursery share one socket for requests, and one more for
each child. On the child's socket, the nursery reports how the child began and ended, and the worker sends
signals. When the worker closes that socket, the child's whole process group is ended, so all children end
with the worker, even after `kill -9`.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from django.conf import settings

from execution.loops.lease import Late
from execution.steps.context import Context
from execution.steps.outcome import CannotRun, Outcome, StepFailed

from .alarms import alarms
from .channel import Channel
from .lines import Lines

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from execution.children.nursery_process import main; main(*json.loads(sys.argv[2]))"
)
START_SECONDS = 60.0
END_SECONDS = 5.0
# How long processes that a program left in the background may still write output after its end.
DRAIN_SECONDS = 0.5
CHUNK = 65_536
TASKS_PER_CHILD = 200
IDLE_SECONDS = 60.0
BUSY_MACHINE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)

C = TypeVar("C", bound="Child")


class Nursery:
    """Two fork servers that any thread can use. All children inherit `keep_fds`, such as the worker's lock.

    `env` is the environment of the fork servers and of Python children. If it is None, they get the
    environment of this process.
    """

    def __init__(self, *, keep_fds: Sequence[int] = (), env: Mapping[str, str] | None = None) -> None:
        # Programs have a fork server of their own, because forking a loaded Django takes far longer.
        self.programs = ForkServer(keep_fds, django=False, env=env)
        self.functions = ForkServer(keep_fds, django=True, env=env)
        self._lock = threading.Lock()
        self._idle: list[PythonChild] = []
        self._retiring = False
        self._closed = False

    def spawn(
        self, ctx: Context, *, argv: Sequence[str], program: str, env: Mapping[str, str], cwd: str
    ) -> Child:
        """Start the program once the lease is good, and return its child.

        The nursery checks the lease again when it starts the program.
        """
        request = {"argv": list(argv), "program": program, "env": dict(env), "cwd": cwd}
        while True:
            ctx.await_lease()
            with suppress(Late):
                return self.programs.start(Child(program), lambda: request | {"until": ctx.lease.until})

    def run_python(self, ctx: Context) -> Outcome:
        """Run the function in a child once the lease is good, and return its outcome.

        The child checks the lease again before it calls the function.
        """
        while True:
            ctx.await_lease()
            with suppress(Late):
                return self._run_in_child(ctx)

    def _run_in_child(self, ctx: Context) -> Outcome:
        """Run the function in an idle child or in a new one, and return its outcome."""
        child = self._idle_child() or self.functions.start(PythonChild("a Python child"), dict)
        try:
            outcome = child.run(ctx)
        except BaseException:
            child.close()
            raise
        if not (child.reusable and ctx.reason is None and self._keep(child)):
            child.close()
        return outcome

    def close(self) -> None:
        """End all children."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for server in (self.programs, self.functions):
            server.close()
        for child in idle:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _idle_child(self) -> PythonChild | None:
        """Return the idle child that was used last, or None if no child is idle.

        The others stay idle, so that they can be ended after IDLE_SECONDS.
        """
        while True:
            with self._lock:
                if not self._idle:
                    return None
                child = self._idle.pop()
            if child.alive():
                return child
            child.close()

    def _keep(self, child: PythonChild) -> bool:
        with self._lock:
            if self._closed:
                return False
            child.idle_since = time.monotonic()
            self._idle.append(child)
            if not self._retiring:
                self._retiring = True
                alarms.after(IDLE_SECONDS, self._retire)
            return True

    def _retire(self) -> None:
        with self._lock:
            too_old = time.monotonic() - IDLE_SECONDS
            for child in [child for child in self._idle if child.idle_since <= too_old]:
                self._idle.remove(child)
                child.let_go()
            self._retiring = bool(self._idle)
            if self._retiring:
                alarms.after(IDLE_SECONDS / 2, self._retire)


class ForkServer:
    """One nursery process, started when it is first needed, and again if it has died."""

    def __init__(self, keep_fds: Sequence[int], *, django: bool, env: Mapping[str, str] | None) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._keep_fds = tuple(keep_fds)
        self._django = django
        self._env = env
        self._lock = threading.Lock()
        self._control: Channel | None = None
        self._closed = False

    def start(self, child: C, request: Callable[[], dict[str, Any]]) -> C:
        """Ask the nursery to start the child, and return the child once its process runs.

        `request` builds the request just before it is sent, because starting the nursery can take seconds.
        """
        try:
            with self._lock:
                self._submit(request, child.theirs)
            child.begin()
        except BaseException:
            child.close()
            raise
        return child

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._bury()

    def _submit(self, request: Callable[[], dict[str, Any]], fds: Sequence[int]) -> None:
        if self._control is not None:
            with suppress(ConnectionError):
                self._control.send(request(), fds)
                return
            self._bury()
        if self._closed:
            raise StepFailed("worker stopped")
        self._control = self._boot()
        with suppress(ConnectionError):  # if the nursery has died by now, the child reports that
            self._control.send(request(), fds)

    def _boot(self) -> Channel:
        ours, theirs = socket.socketpair()
        arguments = [theirs.fileno(), self._keep_fds, self._django]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps(sys.path), json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                env=self._env,
                pass_fds=(theirs.fileno(), *self._keep_fds),
                start_new_session=True,  # Ctrl-C in the worker's terminal is for the worker alone
            )
        return Channel(ours)

    def _bury(self) -> None:
        if self._control is not None:
            self._control.sock.close()
            self._control = None
        if self.process is not None:
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Child:
    """The process of a step and its process group, as the worker sees them.

    Only one thread uses the object, but any thread can call `stop` and `kill`.
    """

    def __init__(self, program: str) -> None:
        self.program = program
        self.pid = 0
        self.returncode: int | None = None
        self.stopped = False  # whether a signal of ours reached it before it ended
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._poll.register(self._status, select.POLLIN)
        self._streams: dict[int, tuple[str, Lines]] = {}
        self.theirs = [status.detach()]  # the ends that the nursery gets
        for name in ("stdout", "stderr"):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._streams[reading] = (name, Lines())
            self._poll.register(reading, select.POLLIN)
            self.theirs.append(writing)

    def begin(self) -> None:
        """Wait until the nursery reports that the process runs; raise an exception if it could not start."""
        self._close_theirs()
        self._status.settimeout(START_SECONDS)
        try:
            told = json.loads(self._status.recv(CHUNK) or b"{}")
        except ConnectionError:
            told = {}
        except TimeoutError:
            raise StepFailed(f"the worker's fork server did not answer within {START_SECONDS:g} s") from None
        self._status.settimeout(None)
        if "late" in told:
            raise Late
        if "error" in told:
            message = f"cannot start {self.program} on worker {socket.gethostname()}: {told['error']}"
            raise StepFailed(message) if told["errno"] in BUSY_MACHINE else CannotRun(message)
        if not told:
            raise StepFailed(
                "the child process died (the worker's fork server ended while the child was starting)"
            )
        self.pid = told["pid"]

    def stop(self) -> None:
        self._signal(signal.SIGTERM)
        alarms.after(settings.JIM_KILL_SECONDS, self.kill)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def wait(self, ctx: Context) -> None:
        """Pass the output on until the process has ended, then end the rest of its process group."""
        while self.returncode is None:
            self._pump(ctx, None)
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._streams and (left := deadline - time.monotonic()) > 0:
            self._pump(ctx, left)
        self._end_group()
        self._finish_output(ctx)

    def close(self) -> None:
        """End the whole process group and wait for it."""
        self._close_theirs()
        self._end_group()
        self.let_go()

    def let_go(self) -> None:
        """End the process group without waiting for it."""
        self._close_theirs()
        self._status.close()
        for fd in self._streams:
            os.close(fd)
        self._streams = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs = []

    def _signal(self, signum: int) -> None:
        with suppress(OSError):
            self._status.send(b"%d" % signum)

    def _end_group(self) -> None:
        with suppress(OSError):
            self._status.shutdown(socket.SHUT_WR)
            self._status.settimeout(END_SECONDS)
            while self._status.recv(CHUNK):
                pass

    def _pump(self, ctx: Context, seconds: float | None) -> None:
        for fd, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if fd in self._streams:
                self._read_stream(ctx, fd)
            elif fd == self._status.fileno():
                self._read_status()
            else:
                self._read_channel(ctx)

    def _read_status(self) -> None:
        try:
            told = json.loads(self._status.recv(CHUNK) or b"{}")
        except ConnectionError:
            told = {}
        if not told:
            # The nursery is gone, and the child with it; only this worker can end the rest of the group.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.returncode = told.get("returncode", -signal.SIGKILL)
        self.stopped = told.get("stopped", False)
        self._poll.unregister(self._status)

    def _read_channel(self, ctx: Context) -> None:
        """Read messages from the child. Only Python children have a channel; programs do not."""

    def _read_stream(self, ctx: Context, fd: int) -> bool:
        """Read from the stream once, and return whether there may be more to read."""
        name, lines = self._streams[fd]
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        said = lines.feed(data, ctx.mask) if data else lines.finish(ctx.mask)
        if not data:
            self._poll.unregister(fd)
            del self._streams[fd]
            os.close(fd)
        if said:
            ctx.output(name, said)
        return len(data) == CHUNK

    def _finish_output(self, ctx: Context) -> None:
        """Read what is in the pipes now, but not endlessly: a process that left the group may still write."""
        for fd in list(self._streams):
            for _ in range(16):
                if not self._read_stream(ctx, fd):
                    break
        for name, lines in self._streams.values():
            if said := lines.finish(ctx.mask):
                ctx.output(name, said)


class PythonChild(Child):
    """A child that runs one function after the other."""

    def __init__(self, program: str) -> None:
        super().__init__(program)
        self.idle_since = 0.0
        self.reusable = False
        self._tasks = 0
        self._outcome: dict[str, Any] | None = None
        self._is_late = False
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        self._poll.register(ours, select.POLLIN)
        self.theirs.append(theirs.detach())

    def run(self, ctx: Context) -> Outcome:
        self._tasks += 1
        self._outcome, self.reusable, self._is_late = None, False, False
        self._forget_output()
        ctx.started()
        with suppress(ConnectionError):
            work = vars(ctx.work) | {"config": ctx.config, "last_result": ctx.last_result}
            self._channel.send({"work": work, "until": ctx.lease.until})
        with ctx.on_interrupt(lambda: self._interrupt(ctx)):
            while self._outcome is None and self.returncode is None and not self._is_late:
                self._pump(ctx, None)
            if self.returncode is not None:
                if not self._channel.ended:
                    self._read_channel(ctx)
                self.wait(ctx)
        self._finish_output(ctx)
        return self._told(ctx)

    def _told(self, ctx: Context) -> Outcome:
        if self._is_late:
            raise Late
        if self._outcome is not None:
            return Outcome(**self._outcome, executed_at=ctx.executed_at, finished_at=ctx.clock())
        if self.stopped:
            ctx.check()
        code = self.returncode or 0
        raise StepFailed(f"the child process died ({f'signal {-code}' if code < 0 else f'exit code {code}'})")

    def alive(self) -> bool:
        try:
            self._status.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except ConnectionError:
            pass
        return False

    def let_go(self) -> None:
        super().let_go()
        self._channel.sock.close()

    def _interrupt(self, ctx: Context) -> None:
        # The reason is sent first, because the child ignores a signal without a reason.
        with suppress(ConnectionError):
            self._channel.send({"interrupt": ctx.reason})
        self.stop()

    def _read_channel(self, ctx: Context) -> None:
        for message in self._channel.received():
            match message:
                case {"output": [stream, lines]}:
                    ctx.output(stream, lines)
                case {"progress": [done, total, text]}:
                    ctx.progress(done, total, text)
                case {"item": [name, outcome, text]}:
                    ctx.item(name, outcome, text)
                case {"late": True}:
                    self._is_late = True
                case {"outcome": outcome, "reusable": reusable}:
                    self._outcome = outcome
                    self.reusable = reusable and self._tasks < TASKS_PER_CHILD
        if self._channel.ended:
            # The child is dead, or a function has closed the channel: either way, no outcome will come.
            self._poll.unregister(self._channel.sock)
            self.kill()

    def _forget_output(self) -> None:
        """Discard output that an earlier function left in the pipes."""
        for fd, (_, lines) in self._streams.items():
            with suppress(BlockingIOError):
                os.read(fd, CHUNK)
            lines.finish()
