from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_SECONDS = 0.02
# How much longer than it was told to wait it may wait on a machine that is busy.
SPARE_SECONDS = 20


def wait_until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    """Looks again until the condition holds; fails if it does not within the time given.

    Only the pauses between two looks count: what a busy machine adds to them, it adds to what is waited for.
    """
    looks, latest = 0, time.monotonic() + seconds + SPARE_SECONDS
    while not condition():
        is_over = looks * PAUSE_SECONDS >= seconds or time.monotonic() > latest
        assert not is_over, f"did not come true within {seconds:g} s"
        time.sleep(PAUSE_SECONDS)
        looks += 1
