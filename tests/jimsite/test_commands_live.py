"""Commands as processes of their own, beside a worker."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
from django.conf import settings

from execution.models import Execution
from tests.base import make_schedule, step
from tests.conftest import subprocess_env
from tests.loops import running_worker
from tests.processes import Command
from tests.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.django_db(transaction=True)]


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
            # Whatever these tests are run by may ignore it, which is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(theirs)

    def shows(self, words: str) -> bool:
        self._read()
        return words in self.shown

    def forget(self) -> None:
        self._read()
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def end(self) -> int:
        """Its exit code, once it ends by itself."""
        wait_until(lambda: self.shows("") and self.process.poll() is not None)
        self._read()
        os.close(self._screen)
        return self.process.wait()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._screen, 65_536):
                self.shown += chunk.decode(errors="replace")
        except OSError:  # nothing to read just now, or nobody there any more
            return


def test_on_ctrl_c_one_is_asked_what_to_do_and_term_cancels_if_that_was_wanted() -> None:
    schedule = make_schedule(step("work", 0, "wait_for_ever"), name="Nightly")
    with running_worker():
        terminal = Terminal("runschedule", "Nightly", "--wait")
        for answer in ("w", "c"):
            wait_until(lambda: terminal.shows("0 of 1 steps done"))
            terminal.process.send_signal(signal.SIGINT)
            wait_until(lambda: terminal.shows("Cancel it (c), leave it running (l)"))
            terminal.forget()
            terminal.type(f"{answer}\n")
        assert terminal.end() == 4, terminal.shown
        assert Execution.objects.get(schedule=schedule).status == "cancelled"
        words = ("runschedule", "Nightly", "--wait", "--cancel-on-interrupt")
        with Command(*words, ready="in progress") as run:
            assert run.terminate() == 4
    assert Execution.objects.latest("pk").status == "cancelled"
    assert Execution.objects.count() == 2
