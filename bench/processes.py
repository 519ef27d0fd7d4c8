"""Processes that end together with the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from execution.children.nursery_process import children_of

PR_SET_PDEATHSIG = 1
PRCTL = ctypes.CDLL(None).prctl
END_SECONDS = 20.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Positions in /proc/…/stat, counted from the state.
CPU_TIMES = slice(11, 15)
START_TIME = 19


def launch(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdout: int | IO[Any],
    stderr: int | IO[Any],
    own_session: bool = False,
    end_by: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[str]:
    """Start a process that gets the signal `end_by` when this process ends.

    With `own_session`, a Ctrl-C in the terminal reaches only this process, which can then end the new one
    cleanly.
    """
    return subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=own_session,
        preexec_fn=lambda: PRCTL(PR_SET_PDEATHSIG, end_by),
    )


def end(process: subprocess.Popen[str], *, by: signal.Signals = signal.SIGTERM) -> int:
    """Ask the process to end, kill what remains of its process tree, and return its exit code."""
    family = {pid: _start_time(pid) for pid in tree(process.pid)}
    if process.poll() is None:
        process.send_signal(by)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    for pid, began in family.items():
        # The id of a process that has ended may belong to another process by now.
        if began and _start_time(pid) == began:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return process.wait()


def tree(pid: int) -> list[int]:
    """Return the ids of this process and of all its descendants."""
    found = [pid]
    for parent in found:
        found += children_of(parent)
    return found


def pss_megabytes(pid: int) -> float:
    """Return the memory of a process tree; a page that n processes share counts as 1/n of a page."""
    return sum(_pss_kilobytes(each) for each in tree(pid)) / 1024


def resident_megabytes(pid: int) -> float:
    return _status_kilobytes(pid, "VmRSS") / 1024


def peak_megabytes(pid: int) -> float:
    """Return the largest resident memory of a process so far."""
    return _status_kilobytes(pid, "VmHWM") / 1024


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process tree so far."""
    ticks = [int(number) for each in tree(pid) for number in _stat(each)[CPU_TIMES]]
    return sum(ticks) / TICKS_PER_SECOND


def _pss_kilobytes(pid: int) -> int:
    """Return the proportional memory of one process; 0 if it has ended."""
    with suppress(OSError):
        return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss")
    return 0


def _status_kilobytes(pid: int, name: str) -> int:
    return _kilobytes(Path(f"/proc/{pid}/status"), name)


def _kilobytes(file: Path, name: str) -> int:
    """Return the number in the line `name:   1234 kB` of the file; 0 if there is no such line."""
    lines = (line.split() for line in file.read_text().splitlines())
    return next((int(words[1]) for words in lines if words[0] == f"{name}:"), 0)


def _start_time(pid: int) -> str:
    return "".join(_stat(pid)[START_TIME : START_TIME + 1])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; an empty list if the process has ended."""
    try:
        # The name in parentheses may itself contain spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
