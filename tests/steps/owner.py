"""A small worker: `python -m tests.steps.owner LOCK FOLDER PROGRAM` runs the program and a function."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from pathlib import Path

import django
from django.test import override_settings


def main(lock: str, folder: str, program: str) -> None:
    django.setup()
    from execution.nursery import Nursery
    from tests.steps.stage import Recorder, Running, function, work

    class Loud(Recorder):
        def output(self, stream: str, lines: list[str]) -> None:
            os.write(1, "".join(f"{line}\n" for line in lines).encode())

    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    nursery = Nursery(keep_fds=(fd,))
    with override_settings(JIM_EXECUTABLE_FOLDERS=[Path(folder)]):
        running = [
            Running(nursery, work("executable", {"argv": [program]}), Loud()),
            Running(nursery, function("have_offspring"), Loud()),
        ]
        threading.Event().wait()
        assert running


if __name__ == "__main__":
    main(*sys.argv[1:])
