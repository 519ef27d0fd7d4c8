"""Logs database outages: one line when an outage begins, and one when it ends."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from text.words import span

from .statements import AWAY

# SQLite raises the same class of error for a locked database and for a missing table. Errors with these codes
# are temporary.
_PASSING = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_IOERR",
    "SQLITE_CANTOPEN",
    "SQLITE_FULL",
    "SQLITE_PROTOCOL",
)


def is_outage(error: BaseException) -> bool:
    """Return whether the error means that the database is unreachable or busy, rather than a bug."""
    if not isinstance(error, AWAY):
        return False
    code = getattr(error.__cause__, "sqlite_errorname", None)
    return code is None or code.startswith(_PASSING)


def in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


class Outage:
    """The outage log of one component, which reports errors with `note` and successes with `is_over`."""

    def __init__(self, logger: logging.Logger, told: str) -> None:
        self.logger = logger
        self.told = told
        self.since: float | None = None

    def note(self, error: BaseException) -> None:
        """Log one line when an outage begins. If the error is a bug, log its traceback instead."""
        if not is_outage(error):
            self.logger.error("%s", self.told, exc_info=error)
        elif self.since is None:
            self.since = time.monotonic()
            self.logger.warning("%s: %s", self.told, in_a_line(error))

    def is_over(self) -> None:
        if self.since is not None:
            lasted = timedelta(seconds=time.monotonic() - self.since)
            self.since = None
            self.logger.info("the database is back after %s (%s)", span(lasted), self.told)
