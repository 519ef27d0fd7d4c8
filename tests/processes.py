"""JIM's commands as processes of their own, on the database of the test."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Self

from django.conf import settings

from tests.conftest import subprocess_env
from tests.waiting import PATIENCE_SECONDS, wait_until


class Command:
    """`manage.py …`, ended with the block at the latest. What it said is shown if the test fails."""

    def __init__(self, *arguments: str, ready: str = "", **env: str) -> None:
        self._said = tempfile.TemporaryFile("a+")  # noqa: SIM115 closed with the block
        self._ready = ready
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=settings.BASE_DIR,
            env=subprocess_env(**env),
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        if self._ready:
            wait_until(lambda: self._ready in self.said or self.process.poll() is not None)
            assert self._ready in self.said, self.said
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        sys.stdout.write(self.said)
        self._said.close()

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()

    def terminate(self) -> int:
        """Asks it to end; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


def scheduler(**env: str) -> Command:
    return Command("runscheduler", ready="scheduler is ready", **env)


def worker(*arguments: str, **env: str) -> Command:
    return Command("runworker", *arguments, ready="is ready", **env)
