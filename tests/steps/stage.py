"""Runs steps the way a worker does, and remembers what they said."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path
from typing import Any, get_args

from execution.children.nursery import Nursery
from execution.steps.context import Context, Work
from execution.steps.outcome import Outcome, Reason
from execution.steps.performing import perform
from tests.waiting import PATIENCE_SECONDS

FUNCTIONS = "tests.steps.functions"


class Recorder:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.progressed: list[tuple[int, int | None, str]] = []
        self.items: list[tuple[str, str, str]] = []

    def output(self, stream: str, lines: list[str]) -> None:
        self.said += [(stream, line) for line in lines]

    def progress(self, done: int, total: int | None, message: str) -> None:
        self.progressed.append((done, total, message))

    def item(self, name: str, outcome: str, message: str) -> None:
        self.items.append((name, outcome, message))

    def lines(self, stream: str) -> list[str]:
        return [line for name, line in self.said if name == stream]

    def pids(self) -> dict[str, int]:
        """Of processes that said `pid <name> <number>`."""
        words = [line.split() for _, line in self.said if line.startswith("pid ")]
        return {name: int(number) for _, name, number in words}


class Running(threading.Thread):
    """A step in a thread of its own, as it runs in a worker."""

    def __init__(self, nursery: Nursery, work: Work, sink: Recorder | None = None) -> None:
        super().__init__(daemon=True)
        self.nursery, self.work = nursery, work
        self.sink = sink or Recorder()
        self.context = Context(work, self.sink)
        self.start()

    def run(self) -> None:
        self._outcome = perform(self.work, self.sink, nursery=self.nursery, context=self.context)

    def interrupt(self, reason: str) -> None:
        assert reason in get_args(Reason)
        self.context.interrupt(reason)  # type: ignore[arg-type]

    @property
    def outcome(self) -> Outcome:
        self.join(PATIENCE_SECONDS)
        assert not self.is_alive(), "the step does not end"
        return self._outcome


def work(step_type: str, config: dict[str, Any], **rest: Any) -> Work:
    return Work(key=str(uuid.uuid4()), attempt=1, name="a step", step_type=step_type, config=config, **rest)


def function(name: str, *args: object, isolation: str = "process", timeout: float | None = None) -> Work:
    path = name if "." in name else f"{FUNCTIONS}.{name}"
    config = {"function": path, "args": list(args), "isolation": isolation}
    return work("python", config, timeout_seconds=timeout)


def is_alive(pid: int) -> bool:
    """A zombie is dead: it only waits to be noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def group_of(pid: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == pid and is_alive(int(folder.name)):
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found
