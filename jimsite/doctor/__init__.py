"""Examines an installation. Each finding says what is wrong and what to do; looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from activities import clock
from activities.statements import AWAY
from activities.text import clean_text

from . import configuration, database, work
from .finding import SEVERITIES, Finding

__all__ = ["SEVERITIES", "Finding", "examine"]

Check = Callable[[], Iterable[Finding]]


def examine() -> list[Finding]:
    """The rest of the database is only looked at if it can be reached and is up to date."""
    findings = [*_found(database.connection_checks), *_found(database.clock_skew)]
    if not _has_error(findings):
        findings += _found(database.migrations)
    if not _has_error(findings):
        now = clock.now()
        findings += [each for check in work.CHECKS for each in _found(_at(check, now))]
    return findings + [each for check in configuration.CHECKS for each in _found(check)]


def _at(check: Callable[[datetime], Iterable[Finding]], now: datetime) -> Check:
    return lambda: check(now)


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(each.severity == "error" for each in findings)


def _found(check: Check) -> Iterator[Finding]:
    """What is so broken that it cannot even be examined is a finding as well."""
    try:
        yield from check()
    except AWAY as error:
        yield Finding(
            "error",
            "database",
            f"It cannot be used: {' '.join(clean_text(str(error)).split())}",
            "Is it running, and is DATABASE_URL right? Its own log says more.",
        )
    except Exception as error:  # the checks after it may find out why
        yield Finding("error", "doctor", f"{check} failed: {error!r}", "Please report this.")
