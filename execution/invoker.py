"""The only place where an occurrence becomes an execution."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from django.db import DatabaseError, connection, transaction
from django.db.models import F

from activities.models import Activity, Initiator
from activities.statements import AWAY, update_each
from activities.wake import wake
from schedules.models import Occurrence, Refused, Schedule, ScheduleQuerySet, Step
from schedules.overlap import Fate, Pending, decide

from .models import Execution
from .models.execution import Start

SCHEDULES_PER_PASS = 200
OCCURRENCES_PER_PASS = 5_000
logger = logging.getLogger(__name__)


class Overlapping(Refused):
    """A manual run met a running execution."""

    def __init__(self, blocked_by: int | None) -> None:
        self.blocked_by = blocked_by
        super().__init__(
            f"Execution {blocked_by} is still running, and this schedule never runs twice side by side."
        )


def invoke(now: datetime) -> None:
    """Accounts and settles every schedule that has something due."""
    after = 0
    while ids := _waiting_schedules(now, after):
        _invoke_some(ids, now=now)
        after = ids[-1]


def invoke_soon(schedule_ids: Iterable[int], *, now: datetime) -> None:
    """The same for schedules whose executions just ended; whoever is locked is left to the next tick."""
    ids = sorted(schedule_ids)
    for start in range(0, len(ids), SCHEDULES_PER_PASS):
        _invoke_some(ids[start : start + SCHEDULES_PER_PASS], now=now, wait=True)


def trigger(
    schedule: Schedule, *, initiator: Initiator, now: datetime, key: str = "", overlap: str = ""
) -> Occurrence:
    """A manual run, started at once; the same key asks for the same run."""
    try:
        return _trigger(schedule, initiator=initiator, now=now, key=key, overlap=overlap)
    except AWAY as error:
        logger.warning("schedule %s cannot be started now: %s", schedule, error)
        raise Refused(f"“{schedule}” is busy just now. Try again in a moment.") from error
    except DatabaseError as error:
        logger.exception("schedule %s cannot be started", schedule)
        raise Refused(f"“{schedule}” was not started: the database refused it ({error}).") from error


def _trigger(
    schedule: Schedule, *, initiator: Initiator, now: datetime, key: str, overlap: str
) -> Occurrence:
    with transaction.atomic():
        _wait_a_second()
        schedule = Schedule.objects.lock().get(pk=schedule.pk)
        if schedule.status == Schedule.Status.CLOSED:
            raise Refused(f"“{schedule}” is closed: it cannot be run any more.")
        occurrence = Occurrence.manual(schedule, initiator=initiator, now=now, key=key, overlap=overlap)
        if key and (known := schedule.occurrences.filter(key=occurrence.key).first()):
            return known
        occurrence.save()
        Activity.objects.record("trigger", schedule, initiator=initiator, now=now)
        _account([schedule], now)
        _settle([schedule], [occurrence], now)
        if occurrence.status == Occurrence.Status.SKIPPED and occurrence.blocked_by:
            raise Overlapping(occurrence.blocked_by)
        if occurrence.status != Occurrence.Status.STARTED:
            raise Refused(f"“{schedule}” was not started: {occurrence.reason}.")
    return occurrence


def _waiting_schedules(now: datetime, after: int) -> list[int]:
    """The next ones by id, so that a pass never stops at schedules which others have locked."""
    sources = (Occurrence.objects.due(now), Execution.objects.unaccounted())
    ids: set[int] = set()
    for rows in sources:
        later = rows.filter(schedule__gt=after).order_by("schedule_id")
        ids |= set(later.values_list("schedule_id", flat=True).distinct()[:SCHEDULES_PER_PASS])
    return sorted(ids)[:SCHEDULES_PER_PASS]


def _invoke_some(ids: Sequence[int], *, now: datetime, wait: bool = False) -> None:
    """One batch; if the database refuses it, its schedules one by one, so that a bad one stops nobody."""
    try:
        _invoke_batch(ids, now=now, wait=wait)
    except AWAY as error:
        # Locked, or the database went away: the next tick repeats it.
        logger.info("schedules %s are left to the next tick: %s", list(ids), error)
        with suppress(*AWAY):
            wake("jim_schedules")
    except DatabaseError as error:
        logger.exception("a batch of %d schedules was refused", len(ids))
        if len(ids) > 1:
            for pk in ids:
                _invoke_some([pk], now=now, wait=wait)
        else:
            _give_up(ids[0], error, now)


def _invoke_batch(ids: Sequence[int], *, now: datetime, wait: bool) -> None:
    with transaction.atomic():
        if wait:
            _wait_a_second()
        rows: ScheduleQuerySet = Schedule.objects.lock(skip_locked=not wait)
        schedules = list(rows.filter(pk__in=ids).order_by("pk"))
        _account(schedules, now)
        due = Occurrence.objects.due(now).filter(schedule__in=schedules)
        _settle(schedules, list(due.order_by("schedule_id", "nominal_at")[:OCCURRENCES_PER_PASS]), now)


def _wait_a_second() -> None:
    """Nobody who waits for an answer, or to go on with other work, waits longer than that for a lock."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '1s'")


def _account(schedules: Sequence[Schedule], now: datetime) -> None:
    """Counts executions that ended, once each."""
    by_pk = {schedule.pk: schedule for schedule in schedules}
    ended = Execution.objects.account(list(by_pk), now=now)
    if not ended:
        return
    for schedule_id, status in ended:
        schedule = by_pk[schedule_id]
        schedule.last_outcome = status
        schedule.failed_count += status == Execution.Status.FAILED
    changed = {schedule_id for schedule_id, _ in ended}
    update_each(
        Schedule,
        ("last_outcome", "failed_count"),
        [(s.pk, s.last_outcome, s.failed_count) for s in schedules if s.pk in changed],
    )


def _settle(schedules: Sequence[Schedule], due: Sequence[Occurrence], now: datetime) -> None:
    """Decides on due occurrences and carries the decisions out. The schedules are locked."""
    if not due:
        return
    by_pk = {occurrence.pk: occurrence for occurrence in due}
    running, now = _running(schedules, now)
    fates = _decide(schedules, due, running, now)
    starts, impossible = _plan([by_pk[fate.id] for fate in fates if fate.verdict == "start"], schedules)
    started = Execution.objects.start(starts, now=now) if starts else {}
    settled = [_row(fate, started, impossible, now) for fate in fates]
    Occurrence.objects.settle_each(settled, known=by_pk)
    _count(schedules, due, now)


def _running(schedules: Sequence[Schedule], now: datetime) -> tuple[dict[int, list[int]], datetime]:
    """What runs, by schedule, and the time that is no earlier than the end of what ran before.

    The caller read the clock before it got the locks; a start may not be dated before an end it waited for.
    """
    running: dict[int, list[int]] = defaultdict(list)
    own = {schedule.pk for schedule in schedules}
    for pk, schedule_id, finished_at in Execution.objects.around(list(own), now=now):
        if finished_at is None:
            running[schedule_id].append(pk)
        elif schedule_id in own:
            now = max(now, finished_at)
    return running, now


def _decide(
    schedules: Sequence[Schedule], due: Sequence[Occurrence], running: dict[int, list[int]], now: datetime
) -> list[Fate]:
    pending: dict[int, list[Pending]] = defaultdict(list)
    policies = {schedule.pk: schedule.overlap for schedule in schedules}
    for o in due:
        policy = o.overlap or policies[o.schedule_id]
        pending[o.schedule_id].append(Pending(o.pk, o.source, policy, o.nominal_at, o.due_at or now))
    return [
        fate
        for schedule in schedules
        for fate in decide(
            pending[schedule.pk],
            running[schedule.pk],
            catch_up_seconds=schedule.catch_up_seconds,
            now=now,
        )
    ]


def _plan(
    occurrences: Sequence[Occurrence], schedules: Sequence[Schedule]
) -> tuple[list[Start], dict[int, str]]:
    """What can be started, and why the rest cannot. Errors in one definition stay with its schedule."""
    by_pk = {schedule.pk: schedule for schedule in schedules}
    steps: dict[int, list[Step]] = defaultdict(list)
    for step in Step.objects.filter(schedule__in={o.schedule_id for o in occurrences}).order_by(
        "index", "pk"
    ):
        steps[step.schedule_id].append(step)
    starts, impossible = [], {}
    for occurrence in occurrences:
        schedule = by_pk[occurrence.schedule_id]
        if not steps[schedule.pk]:
            impossible[occurrence.pk] = "the schedule has no steps"
            continue
        try:
            starts.append(Start.of(schedule, occurrence, steps[schedule.pk]))
        except Exception as error:
            logger.error("schedule %s cannot be started: %s", schedule, error)
            impossible[occurrence.pk] = f"cannot be started: {error}"[:200]
    return starts, impossible


def _row(
    fate: Fate, started: dict[int, int], impossible: dict[int, str], now: datetime
) -> tuple[int, str, str, int | None, datetime]:
    """(id, status, reason, blocked_by, settled_at)"""
    if fate.id in impossible:
        return fate.id, Occurrence.Status.SKIPPED, impossible[fate.id], None, now
    if fate.verdict == "start":
        return fate.id, Occurrence.Status.STARTED, "", None, now
    if fate.verdict == "miss":
        return fate.id, Occurrence.Status.MISSED, "later than the catch-up window", None, now
    blocked_by = fate.blocked_by or started.get(fate.behind or 0)
    return fate.id, Occurrence.Status.SKIPPED, "overlap", blocked_by, now


def _count(schedules: Sequence[Schedule], settled: Sequence[Occurrence], now: datetime) -> None:
    by_pk = {schedule.pk: schedule for schedule in schedules}
    for occurrence in settled:
        schedule, status = by_pk[occurrence.schedule_id], occurrence.status
        schedule.started_count += status == Occurrence.Status.STARTED
        schedule.skipped_count += status == Occurrence.Status.SKIPPED
        schedule.missed_count += status == Occurrence.Status.MISSED
        if status == Occurrence.Status.STARTED:
            schedule.last_run_at = now
    changed = {occurrence.schedule_id for occurrence in settled if occurrence.settled_at == now}
    update_each(
        Schedule,
        ("started_count", "skipped_count", "missed_count", "last_run_at"),
        [
            (s.pk, s.started_count, s.skipped_count, s.missed_count, s.last_run_at)
            for s in schedules
            if s.pk in changed
        ],
    )


def _give_up(pk: int, error: Exception, now: datetime) -> None:
    """A schedule whose start the database refuses: its due occurrences say so, and the others go on."""
    reason = f"could not be started: {error}".replace("\x00", "")[:200]
    with transaction.atomic():
        Schedule.objects.lock().filter(pk=pk).first()
        skipped = (
            Occurrence.objects.due(now)
            .filter(schedule=pk)
            .settle(Occurrence.Status.SKIPPED, reason=reason, now=now)
        )
        Schedule.objects.filter(pk=pk).update(skipped_count=F("skipped_count") + skipped)
