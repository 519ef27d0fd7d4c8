from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from jimsite.supervisor import backoff
from tests.jimsite import supervised
from tests.waiting import PATIENCE_SECONDS, wait_until

Stages = list[list[tuple[str, str]]]


class Running:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, stages: Stages) -> None:
        self.names = [name for stage in stages for name, _ in stage]
        arguments = ["supervise", str(self.folder), json.dumps(stages)]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, supervised.__file__, *arguments],
                env={**os.environ, "PYTHONPATH": str(settings.BASE_DIR)},
                stderr=log,
            )
        wait_until(lambda: "ready" in self.notes() and all(self.pids(name) for name in self.names))

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def pids(self, name: str) -> list[int]:
        return [
            int(note.split()[1]) for note in self.notes() if note.startswith(f"{name} ") and "started" in note
        ]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def lives(self, name: str) -> bool:
        """A dead process holds no lock, whether or not somebody has collected it yet."""
        with (self.folder / f"{name}.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    supervisor = Running(tmp_path)
    yield supervisor
    if supervisor.process.poll() is None:
        supervisor.stop()


def test_backoff_doubles_up_to_its_cap() -> None:
    assert [backoff(ends) for ends in (1, 2, 3, 5, 6, 50, 2000)] == [1, 2, 4, 16, 30, 30, 30]


def test_a_child_that_dies_is_started_again(running: Running) -> None:
    running.start([[("worker", "steady")], [("web", "steady")]])
    os.kill(running.pids("worker")[0], signal.SIGKILL)
    wait_until(lambda: len(running.pids("worker")) == 2)
    assert "worker was killed by SIGKILL, restarting in 1 s" in running.log()
    assert len(running.pids("web")) == 1
    assert running.lives("web")


def test_a_stop_signal_stops_stage_by_stage(running: Running) -> None:
    running.start([[("worker", "draining")], [("web", "steady")]])
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "worker asked to stop" in running.notes())
    assert running.lives("web")
    (running.folder / "drained").touch()
    assert running.process.wait(PATIENCE_SECONDS) == 0
    order = ["worker asked to stop", "worker ended", "web asked to stop", "web ended"]
    assert [note for note in running.notes() if note in order] == order


def test_a_second_signal_stops_at_once(running: Running) -> None:
    running.start([[("worker", "draining")], [("web", "steady")]])
    running.process.send_signal(signal.SIGINT)
    wait_until(lambda: "worker asked to stop" in running.notes())
    assert running.stop(signal.SIGINT) == 0
    assert "worker ended" not in running.notes()
    assert not running.lives("worker")
    assert not running.lives("web")


def test_a_child_that_ignores_the_signal_is_killed_in_the_end(running: Running) -> None:
    running.start([[("worker", "stubborn")], [("web", "steady")]])
    assert running.stop() == 0
    assert "worker did not stop in time, killing it" in running.log()
    assert not running.lives("worker")
    assert "web ended" in running.notes()


def test_children_end_when_the_supervisor_is_killed(running: Running) -> None:
    running.start([[("worker", "steady")], [("web", "steady")]])
    running.stop(signal.SIGKILL)
    wait_until(lambda: not running.lives("worker") and not running.lives("web"))


def test_what_a_dead_child_left_behind_is_cleared_away(running: Running) -> None:
    running.start([[("web", "parent")]])
    wait_until(lambda: running.pids("web-child"))
    os.kill(running.pids("web")[0], signal.SIGKILL)
    # The second one's child waits for the first one's lock, so it starts only if that one is gone.
    wait_until(lambda: len(running.pids("web-child")) == 2)
