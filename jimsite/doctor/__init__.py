"""Check an installation without changing it. Each finding says what is wrong and what to do."""

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
    """Run all checks and return their findings.

    If the database cannot be reached or is not migrated, the checks that need it are left out.
    """
    findings = [*_run(database.reach)]
    if not _has_error(findings):
        findings += [*_run(database.server), *_run(database.clock_skew)]
        applied = [*_run(database.migrations)]
        findings += applied if _has_error(applied) else [*applied, *_work()]
    return findings + [each for check in configuration.CHECKS for each in _run(check)]


def _work() -> Iterator[Finding]:
    now = clock.now()
    for check in work.CHECKS:
        yield from _run(check, now)


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(each.severity == "error" for each in findings)


def _run(check: Callable[..., Iterable[Finding]], *given: datetime) -> Iterator[Finding]:
    """Yield the findings of a check; if the check raises an exception, yield a finding about it."""
    try:
        yield from check(*given)
    except AWAY as error:
        words = " ".join(clean_text(str(error)).split())
        remedy = (
            "Check that the database is running and that DATABASE_URL is correct, and read the database log."
        )
        yield Finding("error", "database", f"The database cannot be used: {words}", remedy)
    except Exception as error:  # later checks may find the cause
        yield Finding(
            "error",
            "doctor",
            f"The check “{check.__name__}” failed: {error!r}",
            "Report this to the maintainers of JIM.",
        )
