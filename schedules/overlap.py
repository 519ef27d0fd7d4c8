"""Pure functions that decide which pending occurrences start, by the overlap policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

ON_TIME_SECONDS = 10
BACKFILLS_AT_ONCE = 10
SOURCE_ORDER = {"manual": 0, "event": 1, "auto": 2, "backfill": 3}
# Sources of which a newer occurrence can replace an older one. Manual runs are never replaced.
REPLACEABLE = ("event", "auto", "backfill")
MISSED = "later than the catch-up window"


class Pending(NamedTuple):
    """A pending occurrence; `is_kept` means that its catch-up window no longer applies."""

    id: int
    source: str
    policy: str
    nominal_at: datetime
    planned_at: datetime
    is_kept: bool = False


class Running(NamedTuple):
    id: int
    source: str
    is_cancelling: bool = False


class Fate(NamedTuple):
    """The decision on one occurrence; `behind` is the id of an occurrence started first in the same pass."""

    id: int
    verdict: Literal["start", "keep", "skip", "miss"]
    reason: str = ""
    blocked_by: int | None = None
    behind: int | None = None


@dataclass
class Decision:
    """The decisions on all occurrences, and the running executions to cancel or terminate."""

    fates: list[Fate] = field(default_factory=list)
    cancel: tuple[int, ...] = ()
    terminate: tuple[int, ...] = ()


def decide(
    pending: Iterable[Pending],
    running: Sequence[Running],
    *,
    catch_up_seconds: int | None,
    now: datetime,
    remaining: int | None = None,
) -> Decision:
    """Decide for each due occurrence whether it starts, waits, is skipped or is missed."""
    missed_before = latest_missed(catch_up_seconds, now)
    room = _Room(list(running), remaining)
    timely: list[Pending] = []
    for occurrence in sorted(pending, key=_order):
        has_window = occurrence.source == "auto" and not occurrence.is_kept
        if has_window and is_missed(occurrence.planned_at, missed_before):
            room.tell(occurrence, "miss", MISSED)
        else:
            timely.append(occurrence)
    room.is_clearing = bool(running) and any(
        occurrence.policy == "cancel_other" and not room.is_used_up(occurrence) for occurrence in timely
    )
    newest = {(occurrence.source, occurrence.policy): occurrence.id for occurrence in timely}
    for occurrence in timely:
        room.place(occurrence, is_newest=newest[occurrence.source, occurrence.policy] == occurrence.id)
    return room.decision


def latest_missed(catch_up_seconds: int | None, now: datetime) -> datetime | None:
    """Return the time before which automatic occurrences are missed, or None without a catch-up window."""
    if catch_up_seconds is None:
        return None
    return now - timedelta(seconds=max(catch_up_seconds, ON_TIME_SECONDS))


def is_missed(planned_at: datetime, missed_before: datetime | None) -> bool:
    """Return whether an automatic occurrence is missed; `missed_before` comes from `latest_missed`."""
    return missed_before is not None and planned_at < missed_before


class _Room:
    """The running executions, the number of runs left, and the decisions made so far."""

    def __init__(self, running: list[Running], remaining: int | None) -> None:
        self.running = running
        self.remaining = remaining
        self.started: list[Pending] = []
        self.kept: dict[str, int] = {}
        # True if an occurrence cancels the running executions: an execution that starts now would be
        # cancelled next.
        self.is_clearing = False
        self.decision = Decision()

    def place(self, occurrence: Pending, *, is_newest: bool) -> None:
        if self.is_used_up(occurrence):
            self.tell(occurrence, "skip", "no runs left")
            return
        match self._policy(occurrence):
            case "allow_all":
                is_full = self.is_clearing or self._backfills_are_full(occurrence)
                self._start_or_keep(occurrence, is_full=is_full)
            case "buffer_all":
                self._start_or_keep(occurrence, is_full=self._is_occupied)
            case "buffer_one":
                self._start_or_replace(occurrence)
            case "cancel_other":
                self._make_way(occurrence, is_newest=is_newest, at_once=False)
            case "terminate_other":
                self._make_way(occurrence, is_newest=is_newest, at_once=True)
            case _:
                self._start_or_skip(occurrence)

    def tell(
        self, occurrence: Pending, verdict: Literal["start", "keep", "skip", "miss"], reason: str
    ) -> None:
        blocked_by = self.running[0].id if self.running and verdict in ("keep", "skip") else None
        behind = self.started[0].id if self.started and verdict in ("keep", "skip") else None
        if reason == "no runs left":
            blocked_by = behind = None
        self.decision.fates.append(
            Fate(occurrence.id, verdict, reason, blocked_by, None if blocked_by else behind)
        )

    def is_used_up(self, occurrence: Pending) -> bool:
        return occurrence.source == "auto" and self.remaining == 0

    @property
    def _is_occupied(self) -> bool:
        return bool(self.running or self.started)

    def _policy(self, occurrence: Pending) -> str:
        """Return the overlap policy that applies to the occurrence.

        An automatic occurrence that would be skipped waits instead, if only backfill runs are in its way.
        """
        if occurrence.policy != "skip" or occurrence.source != "auto" or not self._is_occupied:
            return occurrence.policy
        others: list[Running | Pending] = [*self.running, *self.started]
        return "buffer_one" if all(other.source == "backfill" for other in others) else "skip"

    def _backfills_are_full(self, occurrence: Pending) -> bool:
        sources = [*(run.source for run in self.running), *(start.source for start in self.started)]
        at_once = sources.count("backfill")
        return occurrence.source == "backfill" and at_once >= BACKFILLS_AT_ONCE

    def _start_or_keep(self, occurrence: Pending, *, is_full: bool) -> None:
        if is_full:
            self.tell(occurrence, "keep", "overlap")
        else:
            self._start(occurrence)

    def _start_or_skip(self, occurrence: Pending) -> None:
        if self._is_occupied:
            self.tell(occurrence, "skip", "overlap")
        else:
            self._start(occurrence)

    def _start_or_replace(self, occurrence: Pending) -> None:
        """Start the occurrence, or let it wait.

        A waiting occurrence replaces an earlier one from the same source. Manual runs are never replaced.
        """
        if not self._is_occupied:
            self._start(occurrence)
            return
        if occurrence.source in REPLACEABLE:
            self._supersede(occurrence.source)
            self.kept[occurrence.source] = len(self.decision.fates)
        self.tell(occurrence, "keep", "overlap")

    def _supersede(self, source: str) -> None:
        place = self.kept.pop(source, None)
        if place is not None:
            before = self.decision.fates[place]
            self.decision.fates[place] = Fate(
                before.id, "skip", "superseded", before.blocked_by, before.behind
            )

    def _make_way(self, occurrence: Pending, *, is_newest: bool, at_once: bool) -> None:
        if not is_newest and occurrence.source in REPLACEABLE:
            self.tell(occurrence, "skip", "superseded")
        elif at_once:
            self.decision.terminate += tuple(other.id for other in self.running)
            self.decision.cancel, self.running = (), []
            self._start_or_keep(occurrence, is_full=bool(self.started))
        else:
            known = self.decision.cancel
            asked = (other.id for other in self.running if not other.is_cancelling and other.id not in known)
            self.decision.cancel += tuple(asked)
            self._start_or_keep(occurrence, is_full=self._is_occupied)

    def _start(self, occurrence: Pending) -> None:
        self.tell(occurrence, "start", "")
        self.started.append(occurrence)
        if occurrence.source == "auto" and self.remaining is not None:
            self.remaining -= 1


def _order(occurrence: Pending) -> tuple[int, datetime, int]:
    return SOURCE_ORDER[occurrence.source], occurrence.nominal_at, occurrence.id
