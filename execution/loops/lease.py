"""The lease: how long a claimed attempt certainly belongs to the process that holds it.

Every process of a step imports this module, so it imports nothing else of JIM.
"""

from __future__ import annotations

import math
import time

# The share of a lease during which it is certainly valid. The rest allows for what the clock cannot show: the
# way to the database, and the drift of the two clocks.
CERTAIN_SHARE = 5 / 6
# Unlike CLOCK_MONOTONIC, CLOCK_BOOTTIME keeps running while the machine is suspended, as the lease in the
# database does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> float:
    """Return the seconds on a clock that is never adjusted and that all processes of a host share."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """A lease that is valid until `until`, a time on the clock of `uptime`. By default, it never ends."""

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.asked_at = -math.inf

    @property
    def is_good(self) -> bool:
        return uptime() < self.until

    def renew(self, *, asked_at: float, seconds: float) -> None:
        """Renew the lease for the part of `seconds` during which it is certainly valid.

        The time counts from `asked_at`, which must be read just before the database is asked to renew the
        lease.
        """
        self.asked_at = asked_at
        self.until = asked_at + seconds * CERTAIN_SHARE

    def end(self) -> None:
        """End the lease: the attempt no longer belongs to this process."""
        self.until = -math.inf


class Late(Exception):
    """The lease was no longer valid when the step was to start, in a process that cannot renew the lease."""
