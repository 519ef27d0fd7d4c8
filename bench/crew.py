"""A scheduler and workers, started as real processes for one measurement."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from django.conf import settings

from bench.processes import end, launch

BOOT_SECONDS = 60.0
MOST_SECONDS = 120.0
TAIL = 2_000


class Member:
    def __init__(self, *arguments: str, log: Path) -> None:
        self.name = " ".join(arguments)
        self.log = log
        with log.open("wb") as file:
            self.process = launch(
                [sys.executable, "manage.py", *arguments],
                env=os.environ,
                cwd=settings.BASE_DIR,
                stdout=file,
                stderr=file,
            )
        self.pid = self.process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        return " is ready" in self.said


class Crew:
    """A context manager for a scheduler and workers, which end with the block.

    If one of these processes ends with an error, the block raises RuntimeError.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []

    def scheduler(self) -> Member:
        """Start a scheduler and wait until it is ready, so that the measurement is not disturbed."""
        return self._ready(self._start("runscheduler"))

    def worker(self, *arguments: str) -> Member:
        return self._ready(self.start_worker(*arguments))

    def start_worker(self, *arguments: str) -> Member:
        return self._start("runworker", *arguments)

    def wait(
        self, condition: Callable[[], object], *, every: float = 0.005, seconds: float = MOST_SECONDS
    ) -> None:
        """Wait until the condition holds; fail after a timeout, or if a process ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            for member in self.members:
                if member.process.poll() is not None:
                    raise RuntimeError(f"{member.name} has ended:\n{member.said[-TAIL:]}")
            if time.monotonic() > deadline:
                said = "\n".join(f"{member.name}:\n{member.said[-TAIL:]}" for member in self.members)
                raise TimeoutError(f"not done within {seconds:g} s\n{said}")
            time.sleep(every)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                # The work may be done before a process has started fully, and then it could not end cleanly.
                for member in self.members:
                    self._ready(member)
        finally:
            bad = [member for member in self.members if end(member.process) != 0]
        if bad and kind is None:
            said = "\n".join(f"{member.name}:\n{member.said[-TAIL:]}" for member in bad)
            raise RuntimeError(f"did not end well:\n{said}")

    def _start(self, *arguments: str) -> Member:
        log = settings.JIM_DATA_DIR / f"{arguments[0]}-{len(self.members)}.log"
        self.members.append(Member(*arguments, log=log))
        return self.members[-1]

    def _ready(self, member: Member) -> Member:
        self.wait(lambda: member.is_ready, every=0.02, seconds=BOOT_SECONDS)
        return member
