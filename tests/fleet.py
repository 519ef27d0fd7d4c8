"""Schedulers and workers as processes of their own, to be killed, frozen and replaced."""

from __future__ import annotations

import fcntl
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from django.conf import settings
from django.db import OperationalError, connection, transaction

from database import clock
from execution.models import Chore, Execution, Worker, WorkerTask
from schedules.models import Occurrence, Schedule
from tests.api.serving import is_up, server_command
from tests.base import SOMEBODY
from tests.conftest import subprocess_env
from tests.invariants import Freeze
from tests.ports import kept_port
from tests.processes import Command
from tests.waiting import PATIENCE_SECONDS, wait_until

# Longer than any test: whoever has it loses nothing by being slow, and nothing happens because it ends.
LONG_LEASE_SECONDS = 3_600


class Member(Command):
    def __init__(self, *arguments: str, **env: str) -> None:
        super().__init__(*arguments, **env)
        self.arguments = arguments
        self.pid = self.process.pid
        self.freezes: list[Freeze] = []

    def wait_until_ready(self) -> Self:
        wait_until(lambda: self.is_ready or self.has_ended)
        assert self.is_ready, self.said
        return self

    @property
    def is_ready(self) -> bool:
        return " is ready" in self.said

    @property
    def is_frozen(self) -> bool:
        return state(self.pid) == "T"

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def has_crashed(self) -> bool:
        """Whether it ended by itself, and not well."""
        return self.process.poll() not in (None, 0, -signal.SIGKILL)

    @property
    def worker(self) -> Worker:
        """Its present row: there is a new one after each burial."""
        return Worker.objects.get(pk=re.findall(r"worker (\S+) is ready", self.said)[-1])

    def freeze(self) -> None:
        """Returns when it has really stopped: a signal is not carried out at once."""
        self.freezes.append(Freeze(self.pid, time.time(), math.inf))
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: self.is_frozen or self.has_ended)

    def freeze_empty_handed(self) -> None:
        """Freezes a worker between two transactions.

        Whoever freezes with a lock in its hand holds up its own tasks; on SQLite everybody.
        """
        self.freeze()
        while not self._is_empty_handed():
            self.thaw()
            wait_until(self._is_empty_handed)
            self.freeze()

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.freezes[-1] = self.freezes[-1]._replace(until=time.time())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _is_empty_handed(self) -> bool:
        mine = WorkerTask.objects.filter(worker=self.worker.pk)
        try:
            if connection.vendor == "sqlite":
                with closing(sqlite3.connect(connection.settings_dict["NAME"], timeout=1)) as other:
                    other.execute("BEGIN IMMEDIATE")
                return True
            with transaction.atomic():
                list(Execution.objects.filter(tasks__in=mine).select_for_update(of=("self",), nowait=True))
                rows = mine.select_related("activity").select_for_update(of=("self", "activity"), nowait=True)
                return bool(rows)
        except (OperationalError, sqlite3.OperationalError):
            return False


class Website:
    """A web server that keeps its address when it is killed and started again."""

    def __init__(self, stack: ExitStack, env: dict[str, str]) -> None:
        self.env = env
        self.port = stack.enter_context(kept_port())
        self.address = f"http://127.0.0.1:{self.port}"
        self._said = tempfile.TemporaryFile("a+")  # noqa: SIM115 closed with the stack
        stack.callback(self._said.close)
        self._start()
        stack.callback(self.kill)

    @property
    def is_ready(self) -> bool:
        return not self.is_frozen and is_up(self.address)

    @property
    def is_frozen(self) -> bool:
        return state(self.process.pid) == "T"

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)
        wait_until(lambda: self.is_frozen)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """The process that listens and the one that answers, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            server_command(self.port),
            cwd=settings.BASE_DIR,
            env=subprocess_env(**self.env),
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Fleet:
    """What one test starts, on its database, in a data folder of its own; none of it outlives the block."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder / "data"
        self.env = {"JIM_DATA_DIR": str(self.folder), **env}
        self.members: list[Member] = []
        self.stack = ExitStack()

    @property
    def freezes(self) -> list[Freeze]:
        return [freeze for member in self.members for freeze in member.freezes]

    def start_worker(self, *arguments: str) -> Member:
        return self._start("runworker", *arguments)

    def start_scheduler(self) -> Member:
        return self._start("runscheduler")

    def start_web(self) -> Website:
        return Website(self.stack, self.env)

    def worker(self, *arguments: str) -> Member:
        return self.start_worker(*arguments).wait_until_ready()

    def scheduler(self) -> Member:
        return self.start_scheduler().wait_until_ready()

    def bury_expired(self, member: Member) -> None:
        """A scheduler comes upon its lease, which has ended, as one did all the time while it did."""
        now, lease = clock.now(), timedelta(seconds=LONG_LEASE_SECONDS)
        Worker.objects.filter(pk=member.worker.pk).update(lease_until=now - lease)
        steady = {"last_run_at": now, "steady_since": now - 2 * lease}
        Chore.objects.update_or_create(name="tick", defaults=steady)
        self._start("runscheduler", JIM_LEASE_SECONDS=str(LONG_LEASE_SECONDS))

    def stop(self) -> None:
        """Drains all that still runs; nobody may end with an error."""
        members = [member for member in self.members if not member.has_ended]
        for member in members:
            # One that still loads its code cannot drain yet: the signal would just end it.
            member.wait_until_ready()
            member.process.send_signal(signal.SIGTERM)
        assert [member.process.wait(PATIENCE_SECONDS) for member in members] == [0] * len(members)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()
        wait_until(lambda: not any(is_held(path) for path in self.folder.glob("workers/*")))

    def _start(self, *arguments: str, **env: str) -> Member:
        self.members.append(self.stack.enter_context(Member(*arguments, **(self.env | env))))
        return self.members[-1]


def come_to_rest() -> None:
    """Takes all schedules off the clock, as a person would, and waits for what they have begun.

    However much that is: only if nothing moves any more is it given up.
    """
    for schedule in Schedule.objects.exclude(spec={}):
        schedule.edit(token=schedule.token, initiator=SOMEBODY, now=clock.now(), changes={"spec": {}})
    while any(left := what_is_left()):
        wait_until(lambda: what_is_left() != left)


def is_at_rest() -> bool:
    """Nothing is due, nothing runs, everything is accounted."""
    return not any(what_is_left())


def what_is_left() -> list[int]:
    """In the order in which it becomes something else, so that nothing is overlooked meanwhile."""
    rows = (
        Occurrence.objects.pending(),
        Execution.objects.in_progress(),
        Execution.objects.unaccounted(),
        WorkerTask.objects.all(),
    )
    return [each.count() for each in rows]


def deadlocks() -> int:
    """How many PostgreSQL has broken in this database so far; SQLite knows none."""
    if connection.vendor == "sqlite":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        (count,) = cursor.fetchone()
        return int(count)


def tell(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Shown even if all is well: numbers that a person wants to see beside the verdict."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


def is_held(lifeline: Path) -> bool:
    try:
        with suppress(FileNotFoundError), lifeline.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class Process(NamedTuple):
    """One process, told apart from a later one with the same number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid, _started(pid))

    @classmethod
    def tree(cls, pid: int) -> list[Process]:
        """It and all below it."""
        return [cls.of(each) for each in (pid, *descendants(pid))]

    @property
    def is_alive(self) -> bool:
        return state(self.pid) not in "ZX" and _started(self.pid) == self.started

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the processes that work in this folder, hold a file of it open, or were told of it."""
    return [_told(path) for path in Path("/proc").glob("[0-9]*") if _belongs(path, str(folder))]


def _belongs(process: Path, folder: str) -> bool:
    if int(process.name) == os.getpid():
        return False
    try:
        links = [process / "cwd", *(process / "fd").iterdir()]
        targets = [str(link.readlink()) for link in links]
        told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
    except OSError:
        return False
    return any(target.startswith(folder) for target in targets) or folder.encode() in told


def _told(process: Path) -> str:
    with suppress(OSError):
        return process.name + " " + (process / "cmdline").read_text(errors="replace").replace("\0", " ")
    return process.name


def _started(pid: int) -> str:
    """In ticks since the machine was started; empty if it is gone."""
    return (_stat(pid)[19:20] or [""])[0]


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if state(pid) not in "ZX"]


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    parents = {int(path.name): _stat(int(path.name))[1] for path in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for ancestor in found:
        found += [child for child, parent in parents.items() if parent == str(ancestor)]
    return found[1:]


def state(pid: int) -> str:
    return _stat(pid)[0]


def _stat(pid: int) -> list[str]:
    """Its state, its parent and more."""
    try:
        # The name in parentheses may itself contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["X", "0"]
