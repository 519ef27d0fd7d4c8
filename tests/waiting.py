"""How tests wait: for what they presuppose, as long as it takes, and not for ever."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# The one guard against hanging: no test passes or fails by how fast the machine is.
PATIENCE_SECONDS = 120 * float(os.environ.get("JIM_TEST_PATIENCE") or 1)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.25

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value]) -> Value:
    """Look again until the condition holds, and return what it said; fail with what was last seen.

    The pauses grow, as looking takes time from what is waited for.
    """
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, SHORTEST_PAUSE
    while not (seen := condition()):
        assert time.monotonic() < deadline, f"{_text(condition)} was {seen!r} for {PATIENCE_SECONDS:g} s"
        time.sleep(pause)
        pause = min(pause * 1.2, LONGEST_PAUSE)
    return seen


def _text(condition: Callable[[], object]) -> str:
    """Where a lambda stands, or the name of a function."""
    code = getattr(inspect.unwrap(condition), "__code__", None)
    if code is None or code.co_name != "<lambda>":
        return getattr(condition, "__qualname__", repr(condition))
    return f"the condition in {Path(code.co_filename).name}:{code.co_firstlineno}"
