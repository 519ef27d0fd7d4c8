"""The speed and load of the machine, on which the numbers depend."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

LOOK_SECONDS = 0.25
SPINS = 1_000_000
SYNCS = 50


class Noise(NamedTuple):
    busy: float
    """The share of all cores in use just before the measurement, in percent."""
    spin: float
    """How fast one core counts, in millions per second: less if the core is shared or throttled."""


def noise() -> Noise:
    before = _cpu_times()
    time.sleep(LOOK_SECONDS)
    total, idle = (after - then for after, then in zip(_cpu_times(), before, strict=True))
    began = time.perf_counter()
    for _ in range(SPINS):
        pass
    return Noise(100 * (1 - idle / max(1, total)), SPINS / (time.perf_counter() - began) / 1e6)


def describe(folder: Path) -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; a write reaches the disk in {sync_microseconds(folder):,.0f} µs"
    )


def sync_microseconds(folder: Path) -> float:
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def _cpu_times() -> tuple[int, int]:
    """Return the total and the idle processor time since the machine started, in ticks."""
    with Path("/proc/stat").open() as file:
        times = [int(number) for number in file.readline().split()[1:9]]
    return sum(times), times[3] + times[4]
