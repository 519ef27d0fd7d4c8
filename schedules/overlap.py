"""What becomes of a schedule's pending occurrences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

ON_TIME_SECONDS = 10
SOURCE_ORDER = {"manual": 0, "event": 1, "auto": 2, "backfill": 3}


@dataclass(frozen=True)
class Pending:
    id: int
    source: str
    policy: str
    nominal_at: datetime
    due_at: datetime


@dataclass(frozen=True)
class Fate:
    """`blocked_by` is a running execution; `behind` is an occurrence that starts in the same pass."""

    id: int
    verdict: Literal["start", "skip", "miss"]
    blocked_by: int | None = None
    behind: int | None = None


def decide(
    pending: Sequence[Pending],
    running: Sequence[int],
    *,
    catch_up_seconds: int | None,
    now: datetime,
) -> list[Fate]:
    """The fate of each due occurrence; those not named stay pending."""
    fates: list[Fate] = []
    blocked_by = running[0] if running else None
    behind: int | None = None
    for occurrence in sorted(pending, key=_order):
        if occurrence.due_at > now:
            continue
        if _too_late(occurrence, catch_up_seconds, now):
            fates.append(Fate(occurrence.id, "miss"))
        elif occurrence.policy == "skip" and (blocked_by is not None or behind is not None):
            fates.append(Fate(occurrence.id, "skip", blocked_by=blocked_by, behind=behind))
        else:
            fates.append(Fate(occurrence.id, "start"))
            behind = occurrence.id
    return fates


def _order(occurrence: Pending) -> tuple[int, datetime, int]:
    return SOURCE_ORDER[occurrence.source], occurrence.nominal_at, occurrence.id


def _too_late(occurrence: Pending, catch_up_seconds: int | None, now: datetime) -> bool:
    if occurrence.source != "auto" or catch_up_seconds is None:
        return False
    return now - occurrence.due_at > timedelta(seconds=max(catch_up_seconds, ON_TIME_SECONDS))
