"""Describes the outcome of an occurrence in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from django.conf import settings

from activities.models import Activity
from text.words import span

from .models import Occurrence, Schedule
from .overlap import ON_TIME_SECONDS
from .revisions import Revisions, records_of
from .spec.wording import clock_words, counted, date_words
from .spec.zones import passes_of, wall_time

LONGEST_ERROR = 200
LEADS = {
    "manual": "Manual run by {by}.",
    "backfill": "Backfill requested by {by}.",
    "event": "Triggered by an event ({by}).",
}

# Short reasons for lists.
REASONS = {
    "superseded": "replaced by a newer run",
    "discarded": "discarded when the schedule was resumed",
    "buffer full": "too many runs were waiting",
    "closed": "the schedule was closed",
}


@dataclass(frozen=True)
class LocalTime:
    """A time zone and a day; times on that day are written without the date."""

    zone: ZoneInfo
    day: date

    def words(self, at: datetime) -> str:
        local = at.astimezone(self.zone)
        return self.time(at) if local.date() == self.day else f"{self.time(at)} on {date_words(local)}"

    def full(self, at: datetime) -> str:
        return f"{self.time(at)} on {date_words(at.astimezone(self.zone))}, {self.zone.key}"

    def time(self, at: datetime) -> str:
        local = at.astimezone(self.zone)
        first_pass, second_pass = passes_of(wall_time(at, self.zone), self.zone)
        return clock_words(local) + (f" {local:%Z}" if first_pass != second_pass else "")


class Run(Protocol):
    """The fields of an execution that this module uses; the model of executions is in another app."""

    pk: Any
    status: str
    error: str
    started_at: datetime
    finished_at: datetime | None
    deadline_at: datetime | None
    is_cancelling: bool

    def is_late(self, now: datetime) -> bool: ...


def outcome_in_words(occurrence: Occurrence, *, local: LocalTime, now: datetime) -> str:
    sentence = _sentence(occurrence, local, now)
    lead = LEADS.get(occurrence.source, "").format(by=occurrence.initiator_name)
    return f"{lead} {sentence}" if lead else sentence


def _sentence(occurrence: Occurrence, local: LocalTime, now: datetime) -> str:
    match occurrence.status:
        case Occurrence.Status.STARTED:
            return _started(occurrence, local, now)
        case Occurrence.Status.SKIPPED:
            return _skipped(occurrence, local)
        case Occurrence.Status.MISSED:
            return _missed(occurrence, local)
        case Occurrence.Status.DROPPED:
            return (
                f"Dropped: more than {settings.JIM_BUFFER_LIMIT:,} runs were waiting, so the oldest were "
                "discarded."
            )
        case Occurrence.Status.CANCELLED:
            return _cancelled(occurrence, local)
    return _pending(occurrence, local, now)


def in_the_way(occurrence: Occurrence, running: int | None) -> int | None:
    """Return the id of the execution that blocks the start of the occurrence, or has blocked it, or None.

    `running` is the id of the running execution: this execution blocks an occurrence that still waits.
    """
    if occurrence.status == Occurrence.Status.PENDING:
        return running if occurrence.due_at is None else None
    return None if occurrence.status == Occurrence.Status.STARTED else occurrence.blocked_by


def reason_in_short(occurrence: Occurrence, *, now: datetime, running: int | None = None) -> str:
    """Return in a few words why the occurrence waits or did not start.

    The words do not name the blocking execution, because the list that shows them links to it.
    """
    if occurrence.status != Occurrence.Status.PENDING:
        is_blocked = occurrence.reason == "overlap"
        return (
            "another execution was running"
            if is_blocked
            else REASONS.get(occurrence.reason, occurrence.reason)
        )
    if occurrence.schedule.is_paused and occurrence.source in Occurrence.AUTOMATIC_SOURCES:
        return "waiting: the schedule is paused"
    if in_the_way(occurrence, running):
        return "waiting for another execution to end"
    return "delayed by jitter" if occurrence.planned_at > now else "waiting for its turn"


def paused_words(schedule: Schedule, local: LocalTime) -> str:
    """Describe since when, until when, by whom and why a schedule is paused."""
    paused = pausing(schedule)
    since = f" since {local.words(schedule.paused_at)}" if schedule.paused_at else ""
    until = f" until {local.words(schedule.paused_until)}" if schedule.paused_until else ""
    by = f" by {paused.initiator_name}" if paused and paused.initiator_type != "system" else ""
    note = f" (“{schedule.pause_note}”)" if schedule.pause_note else ""
    return f"the schedule is paused{since}{until}{by}{note}"


def pausing(schedule: Schedule) -> Activity | None:
    """Return the activity that paused the schedule: a pause, or the creation of a paused schedule."""
    return records_of(schedule).filter(operation__in=("pause", "create")).order_by("-pk").first()


def closing(schedule: Schedule) -> Activity | None:
    return records_of(schedule).filter(operation="close").order_by("-pk").first()


def kept_words() -> str:
    return f"the history is kept for only {counted(settings.JIM_RETENTION_DAYS, 'day')}"


def _pending(occurrence: Occurrence, local: LocalTime, now: datetime) -> str:
    schedule = occurrence.schedule
    if schedule.is_paused and occurrence.source in Occurrence.AUTOMATIC_SOURCES:
        return f"Waiting: {paused_words(schedule, local)}."
    if occurrence.planned_at > now:
        return f"Waiting: jitter delays the start until {local.words(occurrence.planned_at)}."
    if occurrence.due_at is None:
        return f"Waiting {_waits_for(occurrence, local)}."
    late = now - occurrence.planned_at
    if late <= timedelta(seconds=settings.JIM_OVERDUE_SECONDS):
        return "Due now: the scheduler will start this run in a moment."
    return f"Due for {span(late)}, but not started yet: check that a scheduler is running."


def _waits_for(occurrence: Occurrence, local: LocalTime) -> str:
    """Return what the occurrence waits for now. The execution that first blocked it may have ended."""
    schedule = occurrence.schedule
    running = schedule.executions.in_progress().defer("plan").order_by("pk").first()
    earlier = schedule.occurrences.pending().filter(
        source=occurrence.source, nominal_at__lt=occurrence.nominal_at
    )
    if running is None:
        return "for its turn: the scheduler will start this run in a moment"
    words = f"for execution {running.pk}, which started at {local.words(running.started_at)}"
    before = earlier.count()
    return words + (f"; {counted(before, 'earlier run')} will start first" if before else "")


def _started(occurrence: Occurrence, local: LocalTime, now: datetime) -> str:
    execution: Run | None = getattr(occurrence, "execution", None)
    if execution is None:
        started = local.words(occurrence.settled_at or occurrence.planned_at)
        return f"Ran: started at {started}. The record of the execution was deleted, because {kept_words()}."
    verb = "Ran" if execution.finished_at else "Running"
    start, end = _start(occurrence, execution, local), _end(execution, local, now)
    return f"{verb}: execution {execution.pk} started at {start} and {end}."


def _start(occurrence: Occurrence, execution: Run, local: LocalTime) -> str:
    started, late = local.words(execution.started_at), execution.started_at - occurrence.planned_at
    is_automatic = occurrence.source == Occurrence.Source.AUTO
    if late > timedelta(seconds=ON_TIME_SECONDS):
        return f"{started}, {span(late)} late," if is_automatic else f"{started}, after waiting {span(late)},"
    if is_automatic and occurrence.planned_at != occurrence.nominal_at:
        return f"{started}, delayed by jitter,"
    return started


def _end(execution: Run, local: LocalTime, now: datetime) -> str:
    if execution.finished_at is None:
        state = "is being cancelled" if execution.is_cancelling else "has not ended yet"
        if execution.deadline_at is None or not execution.is_late(now):
            return state
        return f"{state}; it should have ended by {local.words(execution.deadline_at)}"
    verb = {"completed": "completed", "failed": "failed", "cancelled": "was cancelled"}[execution.status]
    why = f": {_first_line(execution.error)}" if execution.error and execution.status != "completed" else ""
    return f"{verb} after {span(execution.finished_at - execution.started_at)}{why}"


def _skipped(occurrence: Occurrence, local: LocalTime) -> str:
    match occurrence.reason:
        case "overlap":
            return f"Skipped: {_blocker(occurrence, local)}."
        case "superseded":
            return f"Skipped: replaced by {_successor(occurrence, local)}."
        case "no runs left":
            return "Skipped: the schedule had no runs left."
        case "discarded":
            return f"Skipped: {_discarded(occurrence, local)}."
        case reason if reason.startswith("on request"):
            return f"Skipped {reason}."
        case reason:
            return f"Skipped: {_first_line(reason)}."


def _blocker(occurrence: Occurrence, local: LocalTime) -> str:
    blocker = (
        occurrence.schedule.executions.filter(pk=occurrence.blocked_by or 0)
        .defer("plan")
        .select_related("occurrence")
        .first()
    )
    if blocker is None:
        who = f"execution {occurrence.blocked_by}" if occurrence.blocked_by else "another execution"
        return f"{who} was still running"
    if occurrence.settled_at is not None and blocker.started_at < occurrence.settled_at:
        started = local.words(blocker.started_at)
        return f"execution {blocker.pk}, which had started at {started}, was still running"
    instead = f", for {local.words(blocker.occurrence.nominal_at)}" if blocker.occurrence else ""
    return f"several runs were due together, and execution {blocker.pk} was started instead{instead}"


def _successor(occurrence: Occurrence, local: LocalTime) -> str:
    successor = _successor_time(occurrence)
    newer = f"the run of {local.words(successor)}" if successor else "a newer run"
    waited = f", while execution {occurrence.blocked_by} was still running" if occurrence.blocked_by else ""
    return newer + waited


def _successor_time(occurrence: Occurrence) -> datetime | None:
    """Return the nominal time of the occurrence that replaced this superseded occurrence, or None.

    That is the next time from the same source that was not superseded in the same pass. At most a full buffer
    of times is superseded in one pass, so the search is short. Each key ends with its time, so the order of
    the keys is also the order of the times.
    """
    kind = occurrence.key[: occurrence.key.rindex("/") + 1]
    later = occurrence.schedule.occurrences.filter(
        key__gt=occurrence.key, key__lt=f"{kind}9999", key__startswith=kind
    )
    rows = later.order_by("key").values_list("nominal_at", "status", "reason", "settled_at")
    for at, status, reason, settled_at in rows[: settings.JIM_BUFFER_LIMIT + 1]:
        is_replaced = reason == "superseded"
        if status in ("pending", "started") or (is_replaced and settled_at != occurrence.settled_at):
            return at
    return None


def _discarded(occurrence: Occurrence, local: LocalTime) -> str:
    resumed = _record_of(occurrence, "resume")
    by = f" by {resumed.initiator_name}" if resumed else ""
    at = f" at {local.words(occurrence.settled_at)}" if occurrence.settled_at else ""
    return f"the schedule was resumed{by}{at}, and times that passed during the pause were discarded"


def _missed(occurrence: Occurrence, local: LocalTime) -> str:
    """Return why the occurrence was missed, with the catch-up window that applied then."""
    if occurrence.settled_at is None:
        return "Missed."
    definition = Revisions(occurrence.schedule).in_force(occurrence.settled_at)
    seconds = (definition or {}).get("catch_up_seconds", occurrence.schedule.catch_up_seconds)
    late, at = span(occurrence.settled_at - occurrence.planned_at), local.words(occurrence.settled_at)
    if _record_of(occurrence, "resume"):
        cause = f"the schedule was paused until {at}, {late} after this time"
    else:
        cause = f"the scheduler reached this time at {at}, {late} late"
    window = span(timedelta(seconds=seconds)) if seconds else "0"
    return f"Missed: {cause}; the catch-up window is {window}."


def _cancelled(occurrence: Occurrence, local: LocalTime) -> str:
    match occurrence.reason:
        case "closed":
            what, record = "the schedule was closed", _record_of(occurrence, "close")
        case "backfill cancelled":
            what, record = "the backfill was cancelled", _record_of(occurrence, "cancel_backfill")
        case reason:
            return f"Cancelled: {_first_line(reason) or 'no reason was given'}."
    by = f" by {record.initiator_name}" if record else ""
    at = f" at {local.words(occurrence.settled_at)}" if occurrence.settled_at else ""
    return f"Cancelled: {what}{by}{at}."


def _record_of(occurrence: Occurrence, operation: str) -> Activity | None:
    """Return the activity of this operation if it decided the outcome of the occurrence, otherwise None."""
    if occurrence.settled_at is None:
        return None
    rows = records_of(occurrence.schedule).filter(operation=operation, created_at=occurrence.settled_at)
    return rows.order_by("-pk").first()


def _first_line(text: str) -> str:
    line = next(iter(text.strip().splitlines()), "").rstrip(".")
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"
