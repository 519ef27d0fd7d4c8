"""Run by test_supervisor.py as a process of its own: a supervisor, or one of its children.

A child holds a lock on its file for as long as it lives and writes down what happens to it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def supervise(folder: Path, stages: list[list[tuple[str, str]]]) -> None:
    from jimsite.supervisor import Child, Supervisor

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    # Only who would never end by itself is killed, however slow the others are.
    patience = {"stubborn": 0.5}
    built = [
        [
            Child(name, command(folder, name, kind), stop_seconds=patience.get(kind, 3_600))
            for name, kind in stage
        ]
        for stage in stages
    ]
    names = [child.name for stage in built for child in stage]
    Supervisor(*built).run(
        is_ready=lambda: all((folder / f"{name}.lock").exists() for name in names),
        when_ready=lambda: note(folder, "ready"),
    )


def live(folder: Path, name: str, behaviour: str) -> None:
    lock = (folder / f"{name}.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    if behaviour == "parent":
        subprocess.Popen(command(folder, f"{name}-child", "steady"))
    note(folder, f"{name} {os.getpid()} started")
    while not stopping:
        time.sleep(0.01)
    note(folder, f"{name} asked to stop")
    while behaviour == "stubborn" or (behaviour == "draining" and not (folder / "drained").exists()):
        time.sleep(0.01)
    note(folder, f"{name} ended")


def command(folder: Path, name: str, behaviour: str) -> list[str]:
    return [sys.executable, __file__, "live", str(folder), name, behaviour]


def note(folder: Path, text: str) -> None:
    with (folder / "notes").open("a") as notes:
        notes.write(f"{text}\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["supervise", folder, stages]:
            supervise(Path(folder), json.loads(stages))
        case ["live", folder, name, behaviour]:
            live(Path(folder), name, behaviour)
