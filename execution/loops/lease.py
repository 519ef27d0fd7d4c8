"""How long a claimed attempt certainly belongs to the process that holds it.

Imported by every process of a step, so it loads nothing.
"""

from __future__ import annotations

import math
import time

# The rest is for what a clock cannot see: the way to the database, and its clock beside ours.
CERTAIN_SHARE = 5 / 6
# Unlike CLOCK_MONOTONIC it goes on while the machine is suspended, as the lease in the database does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> float:
    """Seconds on a clock that is never set and that all processes of a host share."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """Good until `until`, on the clock of `uptime`; for ever if it is never renewed."""

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.asked_at = -math.inf

    @property
    def is_good(self) -> bool:
        return uptime() < self.until

    def renew(self, *, asked_at: float, seconds: float) -> None:
        """`asked_at` is from before the statement was made: the lease in the database counts from there."""
        self.asked_at = asked_at
        self.until = asked_at + seconds * CERTAIN_SHARE

    def end(self) -> None:
        """Others have what it was for."""
        self.until = -math.inf


class Late(Exception):
    """The lease was no longer good when the step should have started, in a process that cannot renew it."""
