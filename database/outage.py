"""What the log says while the database is away: one line per outage, with what is done about it."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

from text.words import span

from .statements import AWAY

# SQLite has one class of errors for "locked" and for "no such table". These codes say nothing about the data.
_PASSING = (
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_IOERR",
    "SQLITE_CANTOPEN",
    "SQLITE_FULL",
    "SQLITE_PROTOCOL",
)


def is_outage(error: BaseException) -> bool:
    """Whether the database is away, or busy: expected now and then, and no reason to look for a mistake."""
    if not isinstance(error, AWAY):
        return False
    code = getattr(error.__cause__, "sqlite_errorname", None)
    return code is None or code.startswith(_PASSING)


def in_a_line(error: BaseException) -> str:
    return " ".join(str(error).split())


class Outage:
    """Of one component, which notes each error, and each time that all went well."""

    def __init__(self, logger: logging.Logger, told: str) -> None:
        self.logger = logger
        self.told = told
        self.since: float | None = None

    def note(self, error: BaseException) -> None:
        """One line when the database goes away. Everything else is a mistake, with a traceback each time."""
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
