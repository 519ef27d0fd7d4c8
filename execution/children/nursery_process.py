"""The fork server that `execution.children.nursery` starts: one thread, and no database connection.

This process is forked for every program, so the module imports as little as possible.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from execution.loops.lease import Late, Lease

from .channel import Channel

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl: Callable[[int, int], int] = getattr(ctypes.CDLL(None), "prctl", lambda option, value: -1)


def main(control_fd: int, keep_fds: Sequence[int], with_django: bool) -> NoReturn:
    # If the nursery is stopped (SIGSTOP) when its worker dies, SIGCONT makes it go on, see the closed socket
    # and end all its children. SIGKILL would not do: children that left their group would outlive it, and the
    # signal also comes whenever the thread that started the nursery ends.
    _prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    # The nursery ends with the worker. If a supervisor signals all processes, only the worker has to react.
    for signum in IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if with_django:
        import django
        from django.db import connections

        from . import child  # noqa: F401 it is needed in every child

        django.setup()
        connections.close_all()
    gc.collect()
    gc.freeze()  # what is loaded by now stays shared between the children
    NurseryProcess(socket.socket(fileno=control_fd), keep_fds).serve()


class ChildProcess:
    """A child process, which stays a zombie until the worker releases it, so that its id is not reused."""

    def __init__(self, pid: int, wire: socket.socket) -> None:
        self.pid = pid
        self.wire = wire
        self.ended = self.stopped = self.released = False


class NurseryProcess:
    def __init__(self, control: socket.socket, keep_fds: Sequence[int]) -> None:
        self.pid = os.getpid()
        self.keep_fds = tuple(keep_fds)
        self.children: dict[int, ChildProcess] = {}
        self.control = Channel(control)
        self.wakeup, waker = socket.socketpair()
        waker.setblocking(False)
        self.wakeup.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self.waker = waker
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, self.read_control)
        self.selector.register(self.wakeup, selectors.EVENT_READ, self.woken)

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def read_control(self) -> None:
        for request in self.control.received():
            count = 3 if request else 4
            fds, self.control.fds = self.control.fds[:count], self.control.fds[count:]
            self.start(request, fds)
        if self.control.ended:
            self.end()

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        wire = socket.socket(fileno=fds[0])
        try:
            pid = self.spawn(request, wire, *fds[1:]) if request else self.fork(wire, *fds[1:])
        except Late:
            tell(wire, {"late": True})
            wire.close()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            words, number = getattr(error, "strerror", str(error)), getattr(error, "errno", 0)
            tell(wire, {"error": words, "errno": number})
            wire.close()
        else:
            child = self.children[pid] = ChildProcess(pid, wire)
            self.selector.register(wire, selectors.EVENT_READ, partial(self.read_wire, child))
            tell(wire, {"pid": pid})
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def spawn(self, request: dict[str, Any], wire: socket.socket, stdout: int, stderr: int) -> int:
        lease = Lease(request["until"])

        def prepare() -> None:
            self.belong()
            # As late as possible: the program starts right after this.
            if not lease.is_good or is_given_up(wire):
                raise Late

        try:
            process = subprocess.Popen(
                request["argv"],
                executable=request["program"],
                env=request["env"],
                cwd=request["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=self.keep_fds,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except subprocess.SubprocessError:
            # The error says that something was raised in the new process, but not what.
            raise Late from None
        process.returncode = 0  # keeps Popen from waiting for the process, as the nursery does
        return process.pid

    def fork(self, wire: socket.socket, stdout: int, stderr: int, channel: int) -> int:
        if pid := os.fork():
            return pid
        try:
            os.setsid()
            self.belong()
            signal.set_wakeup_fd(-1)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            self.selector.close()
            mine = [self.control.sock, self.wakeup, self.waker, wire]
            for sock in mine + [child.wire for child in self.children.values()]:
                sock.close()
            os.close(stdout)
            os.close(stderr)
            from . import child

            child.serve(socket.socket(fileno=channel))
        except BaseException:  # the child must never return to the nursery's loop
            traceback.print_exc()
        finally:
            os._exit(70)

    def belong(self) -> None:
        """Make the new process die with the nursery, and stop ignoring the signals that its parents ignore.

        The nursery ignores some signals, and a shell that starts a worker in the background ignores others.
        """
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.pid:
            os._exit(70)
        for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
            if signum == signal.SIGCHLD or signal.getsignal(signum) == signal.SIG_IGN:
                signal.signal(signum, signal.SIG_DFL)

    def read_wire(self, child: ChildProcess) -> None:
        if child.released:
            return
        try:
            data = child.wire.recv(16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self.look_after(child)
        if data:
            child.stopped = child.stopped or not child.ended
            self.signal(child, int(data))
        else:
            child.released = True
            self.selector.unregister(child.wire)
            self.signal(child, signal.SIGKILL)
            self.let_go()

    def signal(self, child: ChildProcess, signum: int) -> None:
        try:
            os.killpg(child.pid, signum)
        except ProcessLookupError:
            # A child forked this very moment is not yet the leader of its group.
            os.kill(child.pid, signum)

    def woken(self) -> None:
        self.wakeup.recv(4096)
        for child in self.children.values():
            self.look_after(child)
        self.let_go()

    def look_after(self, child: ChildProcess) -> None:
        """Tell the worker if the child has ended. The child stays a zombie."""
        if child.ended:
            return
        found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            child.ended = True
            returncode = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
            tell(child.wire, {"returncode": returncode, "stopped": child.stopped})

    def let_go(self) -> None:
        for child in [child for child in self.children.values() if child.ended and child.released]:
            os.waitpid(child.pid, 0)
            del self.children[child.pid]
            child.wire.close()
        self.reap_orphans()

    def reap_orphans(self) -> None:
        """Reap orphaned descendants, which the nursery has adopted.

        Stop at a zombie that is a child of the nursery itself, because it hides the zombies behind it. The
        hidden zombies are reaped after the worker has released that child.
        """
        with suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in self.children:
                    break
                os.waitpid(found.si_pid, 0)

    def end(self) -> NoReturn:
        """Kill all descendants, wait until they have ended, and exit, which releases the worker's lock."""
        for child in self.children.values():
            self.signal(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                for pid in children_of(self.pid):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(-1, 0)
        sys.exit(0)


def is_given_up(wire: socket.socket) -> bool:
    """Return whether the worker has closed its end of the socket, because it stopped waiting or is gone."""
    try:
        return not wire.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def tell(wire: socket.socket, message: dict[str, Any]) -> None:
    with suppress(OSError):  # the worker may have closed it
        wire.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)


def children_of(parent: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses may itself contain spaces and parentheses.
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                yield int(stat.parent.name)
