"""Commands as processes of their own, beside a real worker."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings

from execution.models import Execution
from tests.base import fresh, make_schedule, step
from tests.conftest import subprocess_env
from tests.processes import Command, worker
from tests.waiting import wait_until

pytestmark = [pytest.mark.serial, pytest.mark.django_db(transaction=True)]


class Terminal:
    """A command on a terminal: what it shows is read, and what people type is written."""

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self._screen, theirs = pty.openpty()
        os.set_blocking(self._screen, False)
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=settings.BASE_DIR,
            env=subprocess_env(TERM="xterm", COLUMNS="100", LINES="30"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def shows(self, words: str) -> bool:
        self._read()
        return words in self.shown

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def end(self, *, seconds: float = 20) -> int:
        """Its exit code, once it ends by itself."""
        wait_until(lambda: self._read() or self.process.poll() is not None, seconds=seconds)
        self._read()
        os.close(self._screen)
        return self.process.wait()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._screen, 65_536):
                self.shown += chunk.decode(errors="replace")
        except OSError:  # nothing to read just now, or nobody there any more
            return


def test_a_run_is_watched_to_its_end_on_a_terminal(tmp_path: Path) -> None:
    go = tmp_path / "go"
    make_schedule(step("first"), step("second", 1, "wait_for_file", kwargs={"path": str(go)}), name="Nightly")
    with worker("--processes", "1", "--threads", "2"):
        terminal = Terminal("runschedule", "Nightly", "--wait")
        wait_until(lambda: terminal.shows("1 of 2 steps done"))
        go.touch()
        assert terminal.end() == 0, terminal.shown
    assert "completed after" in terminal.shown


def test_on_ctrl_c_one_is_asked_what_to_do() -> None:
    schedule = make_schedule(step("work", 0, "wait_for_ever"), name="Nightly")
    with worker("--processes", "1", "--threads", "2"):
        terminal = Terminal("runschedule", "Nightly", "--wait")
        wait_until(lambda: terminal.shows("0 of 1 steps done"))
        terminal.process.send_signal(signal.SIGINT)
        wait_until(lambda: terminal.shows("cancel it (c), leave it (l)"))
        terminal.type("w\n")
        wait_until(lambda: terminal.shown.count("steps done") > 1 or terminal.shows("steps done"))
        terminal.process.send_signal(signal.SIGINT)
        wait_until(lambda: terminal.shown.count("leave it (l)") > 1 or terminal.shows("\0"))
        terminal.type("c\n")
        assert terminal.end() == 4, terminal.shown
    assert Execution.objects.get(schedule=schedule).status == "cancelled"


def test_term_cancels_if_that_was_wanted_and_output_can_be_followed_meanwhile() -> None:
    make_schedule(step("work", 0, "wait_for_ever"), name="Nightly")
    with worker("--processes", "1", "--threads", "2"):
        with Command("runschedule", "Nightly", "--wait", "--cancel-on-interrupt", ready="in progress") as run:
            execution = Execution.objects.get()
            with Command("activity", str(execution.activity_id), "--follow") as follow:
                assert run.terminate() == 4
                assert follow.process.wait(20) == 4
    assert fresh(execution).status == "cancelled"


def test_whoever_has_seen_enough_may_stop_reading() -> None:
    for number in range(200):
        make_schedule(name=f"Schedule of some length {number}")
    shell = f"{sys.executable} manage.py schedules --limit 200 | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=settings.BASE_DIR, env=subprocess_env(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr, done.stdout.split()[0]) == (0, "", "State")
