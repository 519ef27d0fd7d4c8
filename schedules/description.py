"""The overview of a schedule: its state, counters, executions and next times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, Q

from text.words import on_the_clock

from .models import Backfill, Refused, Schedule
from .models.occurrence import named_time
from .outcomes import pausing
from .spec import SpecError
from .spec.explanation import Upcoming

RESULTS = 10
TIMES = 10
MOST_RUNNING = 100
MOST_BACKFILLS = 100


@dataclass(frozen=True)
class Pause:
    since: datetime | None
    until: datetime | None
    by: str
    note: str


@dataclass(frozen=True)
class Counters:
    """The counters of a schedule: totals, recent failures, waiting occurrences and runs left."""

    started: int
    skipped: int
    skipped_by_reason: dict[str, int]
    missed: int
    dropped: int
    failed: int
    failures_in_a_row: int
    failures_recently: int
    failures_among: int
    buffered: int
    remaining: int | None


@dataclass(frozen=True)
class RunningExecution:
    id: int
    source: str
    nominal_at: datetime | None
    since: datetime
    is_late: bool
    is_cancelling: bool


@dataclass(frozen=True)
class Result:
    execution_id: int
    source: str
    nominal_at: datetime | None
    started_at: datetime
    outcome: str
    duration: timedelta
    error: str


@dataclass(frozen=True)
class BackfillProgress:
    """The progress of a backfill, counted in scheduled times.

    Of `total` times, `passed` have been checked; `added` of these have become occurrences, and `waiting` of
    these occurrences are pending.
    """

    id: int
    start_at: datetime
    end_at: datetime
    which: str
    overlap: str
    by: str
    total: int
    passed: int
    added: int
    waiting: int


@dataclass(frozen=True)
class Description:
    name: str
    sentence: str
    time_zone: str
    state: str
    is_overdue: bool
    spec_error: str
    token: int
    tags: list[str]
    memo: dict[str, str]
    pause: Pause | None
    counters: Counters
    running: list[RunningExecution]
    results: list[Result]
    upcoming: list[Upcoming]
    backfills: list[BackfillProgress]
    last_run_at: datetime | None
    last_outcome: str
    last_result: Any
    last_failure: str

    def as_json(self) -> dict[str, Any]:
        return {name: _json(value) for name, value in asdict(self).items()}


def describe(schedule: Schedule, *, now: datetime) -> Description:
    """Return the overview of a schedule; the number of queries does not grow with its history."""
    waiting = _waiting(schedule)
    return Description(
        name=schedule.name,
        sentence=schedule.spec_in_words,
        time_zone=schedule.zone.key,
        state=state_of(schedule),
        is_overdue=schedule.is_overdue(now),
        spec_error=schedule.spec_error,
        token=schedule.token,
        tags=schedule.tags,
        memo=schedule.memo,
        pause=_pause(schedule) if schedule.is_paused else None,
        counters=_counters(schedule, buffered=sum(waiting.values())),
        running=_running(schedule, now),
        results=_results(schedule),
        upcoming=_upcoming(schedule, now),
        backfills=_backfills(schedule, waiting),
        last_run_at=schedule.last_run_at,
        last_outcome=schedule.last_outcome,
        last_result=schedule.last_result,
        last_failure=schedule.last_failure,
    )


def state_of(schedule: Schedule) -> str:
    """Return the state of a schedule: active, paused, closed, broken, ended or by hand.

    “Ended” means that no times or runs are left. “By hand” means that the schedule has neither rules nor
    topics, so it runs only when it is started by hand.
    """
    if schedule.status == Schedule.Status.CLOSED:
        return "closed"
    try:
        spec = schedule.compiled_spec
    except SpecError:
        return "broken"
    if schedule.spec_error:
        return "broken"
    if schedule.is_paused:
        return "paused"
    if schedule.topics:
        return "active"
    if spec.is_manual:
        return "by hand"
    is_unfilled = schedule.processed_until is None
    has_ended = (schedule.next_run_at is None and not is_unfilled) or schedule.remaining == 0
    return "ended" if has_ended else "active"


def _pause(schedule: Schedule) -> Pause:
    paused = pausing(schedule)
    return Pause(
        schedule.paused_at,
        schedule.paused_until,
        paused.initiator_name if paused else "",
        schedule.pause_note,
    )


def _waiting(schedule: Schedule) -> dict[int | None, int]:
    """Return a dict from backfill id to the number of pending occurrences.

    The key None counts the occurrences that do not belong to a backfill.
    """
    pending = schedule.occurrences.pending().order_by()
    return dict(pending.values_list("backfill").annotate(Count("pk")))


def _counters(schedule: Schedule, *, buffered: int) -> Counters:
    return Counters(
        started=schedule.started_count,
        skipped=schedule.skipped_count,
        skipped_by_reason=schedule.skipped_reasons,
        missed=schedule.missed_count,
        dropped=schedule.dropped_count,
        failed=schedule.failed_count,
        failures_in_a_row=schedule.failures_in_a_row,
        failures_recently=schedule.failures_recently,
        failures_among=schedule.failures_among,
        buffered=buffered,
        remaining=schedule.remaining,
    )


def _running(schedule: Schedule, now: datetime) -> list[RunningExecution]:
    rows = schedule.executions.in_progress().select_related("occurrence").defer("plan", "last_result")
    return [
        RunningExecution(
            id=execution.pk,
            source=execution.source,
            nominal_at=execution.occurrence.nominal_at if execution.occurrence else None,
            since=execution.started_at,
            is_late=execution.is_late(now),
            is_cancelling=execution.is_cancelling,
        )
        for execution in rows.order_by("pk")[:MOST_RUNNING]
    ]


def _results(schedule: Schedule) -> list[Result]:
    """Return the last executions that ended, newest first."""
    rows = schedule.executions.filter(finished_at__isnull=False).select_related("occurrence")
    return [
        Result(
            execution_id=execution.pk,
            source=execution.source,
            nominal_at=execution.occurrence.nominal_at if execution.occurrence else None,
            started_at=execution.started_at,
            outcome=execution.status,
            duration=(execution.finished_at or execution.started_at) - execution.started_at,
            error=execution.error,
        )
        for execution in rows.defer("plan", "last_result").order_by("-pk")[:RESULTS]
    ]


def _upcoming(schedule: Schedule, now: datetime) -> list[Upcoming]:
    try:
        return schedule.upcoming(TIMES, now=now)
    except Refused:
        return []  # the state shows that the spec is invalid


def _backfills(schedule: Schedule, waiting: Mapping[int | None, int]) -> list[BackfillProgress]:
    """Return the backfills that are open or still have pending occurrences."""
    unfinished = Q(status=Backfill.Status.OPEN) | Q(pk__in=[pk for pk in waiting if pk is not None])
    return [
        BackfillProgress(
            id=backfill.pk,
            start_at=backfill.start_at,
            end_at=backfill.end_at,
            which=backfill.which,
            overlap=backfill.overlap,
            by=backfill.initiator_name,
            total=backfill.total,
            passed=backfill.passed_count,
            added=backfill.added_count,
            waiting=waiting.get(backfill.pk, 0),
        )
        for backfill in schedule.backfills.filter(unfinished).order_by("pk")[:MOST_BACKFILLS]
    ]


def _json(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z") if value.tzinfo is UTC else value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Upcoming():
            return _json(value._asdict())
        case dict():
            return {name: _json(item) for name, item in value.items()}
        case list():
            return [_json(item) for item in value]
    return value


class Time(NamedTuple):
    """An upcoming time of a schedule.

    `starts` is the time with jitter, or empty if jitter does not change the time. `left_out_by` is the name
    of the person or program that asked to skip the time, or empty.
    """

    at: datetime
    name: str
    local: str
    utc: str
    starts: str
    note: str
    left_out_by: str


def coming(schedule: Schedule, upcoming: Sequence[Upcoming]) -> list[Time]:
    """Return all upcoming times in order: those in `upcoming`, and those that will be skipped."""
    return sorted([*_occurring(schedule, upcoming), *_left_out(schedule)])


def _occurring(schedule: Schedule, upcoming: Sequence[Upcoming]) -> Iterator[Time]:
    for row in upcoming:
        starts = on_the_clock(row.due_at, schedule.zone) if row.due_at != row.at else ""
        yield _time(schedule, row.at, starts=starts, note=row.note)


def _left_out(schedule: Schedule) -> Iterator[Time]:
    for name, by in schedule.skips.items() if schedule.status != Schedule.Status.CLOSED else ():
        yield _time(schedule, datetime.fromisoformat(name), left_out_by=by)


def _time(
    schedule: Schedule, at: datetime, *, starts: str = "", note: str = "", left_out_by: str = ""
) -> Time:
    local = on_the_clock(at, schedule.zone)
    return Time(at, named_time(at), local, on_the_clock(at), starts, note, left_out_by)
