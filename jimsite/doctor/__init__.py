"""Examines an installation. Each finding says what is wrong and what to do; looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from database import clock
from database.statements import AWAY
from text.clean import clean_text

from . import configuration, database, work
from .finding import SEVERITIES, Finding

__all__ = ["SEVERITIES", "Finding", "examine"]


def examine() -> list[Finding]:
    """The rest of the database is only looked at if it can be reached and is up to date."""
    findings = [*_found(database.reach)]
    if not _has_error(findings):
        findings += [*_found(database.server), *_found(database.clock_skew)]
        applied = [*_found(database.migrations)]
        findings += applied if _has_error(applied) else [*applied, *_work()]
    return findings + [each for check in configuration.CHECKS for each in _found(check)]


def _work() -> Iterator[Finding]:
    now = clock.now()
    for check in work.CHECKS:
        yield from _found(check, now)


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(each.severity == "error" for each in findings)


def _found(check: Callable[..., Iterable[Finding]], *given: datetime) -> Iterator[Finding]:
    """What is so broken that it cannot even be examined is a finding as well."""
    try:
        yield from check(*given)
    except AWAY as error:
        words = " ".join(clean_text(str(error)).split())
        remedy = "Is it running, and is DATABASE_URL right? Its own log says more."
        yield Finding("error", "database", f"It cannot be used: {words}", remedy)
    except Exception as error:  # the checks after it may find out why
        yield Finding("error", "doctor", f"{check.__name__}: {error!r}", "Tell those who look after JIM.")
