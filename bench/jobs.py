"""The functions that the measured steps call, which do almost nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.marks import Marks

marks = Marks(Path(os.environ["BENCH_MARKS"]))


def noop() -> int:
    marks.count()
    return 1


def nap() -> int:
    """Sleep for 10 ms, like a very short call to another system."""
    marks.count()
    time.sleep(0.01)
    return 1


def fail() -> None:
    marks.count()
    raise RuntimeError("it was meant to")


def mark(place: int) -> int:
    marks.mark(place)
    return 1
