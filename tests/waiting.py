from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    """Looks again until the condition holds; fails if it does not within the time given."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {seconds:g} s"
        time.sleep(0.02)
