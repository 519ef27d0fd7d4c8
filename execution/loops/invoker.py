"""Turn occurrences into executions. Only this module does that.

To invoke a schedule means two things: to add its ended executions to its counters, and to settle its
occurrences. To settle occurrences means to decide which of them start, wait, are skipped or are missed.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, transaction

from activities.signals import Event, noticed
from database.statements import AWAY, update_each
from database.wake import wake
from execution.models import Execution
from execution.models.execution_queryset import Accounted
from execution.models.start import Start
from operations.initiator import Initiator
from schedules import registry
from schedules.models import Backfill, Occurrence, Schedule, Step
from schedules.models.occurrence import Waiting, notice_missed
from schedules.overlap import Decision, Fate, Pending, Running, decide

OUTCOME = (
    "last_outcome",
    "failed_count",
    "failures_in_a_row",
    "recent_outcomes",
    "last_result",
    "last_failure",
)
SETTLED = (
    "started_count",
    "skipped_count",
    "skipped_reasons",
    "missed_count",
    "remaining",
    "last_run_at",
)
SCHEDULES_PER_PASS, SCHEDULES_PER_LOOK = 200, 2_000
OCCURRENCES_PER_PASS = 5_000
logger = logging.getLogger(__name__)


class Pass(NamedTuple):
    """The result of one pass over some schedules.

    `settled`: the occurrences that were started, skipped or missed, as (id, status, reason, blocked_by).
    `left`: the ids of the schedules that are left for the next pass.
    """

    settled: Sequence[tuple[int, str, str, int | None]] = ()
    settled_at: datetime | None = None
    left: Sequence[int] = ()


def invoke(now: datetime) -> None:
    """Invoke every schedule with due occurrences, or with ended executions that are not counted yet."""
    after = 0
    while ids := _waiting_schedules(now, after):
        _invoke_in_passes(ids, now=now, wait=False)
        after = ids[-1]


def invoke_soon(schedule_ids: Iterable[int], *, now: datetime) -> None:
    """Invoke schedules whose executions have just ended, without waiting for the next tick.

    Schedules that another process keeps locked for too long are left to the next tick.
    """
    _invoke_in_passes(sorted(schedule_ids), now=now, wait=True)


def _waiting_schedules(now: datetime, after: int) -> list[int]:
    """Return the ids of the next schedules to invoke, out of those with an id above `after`.

    The caller passes the last id of one call as the `after` of the next call. Schedules that another process
    has locked are therefore not returned again.
    """
    sources = (Occurrence.objects.due(now), Execution.objects.unaccounted())
    ids: set[int] = set()
    for rows in sources:
        later = rows.filter(schedule__gt=after).order_by("schedule_id")
        ids |= set(later.values_list("schedule_id", flat=True).distinct()[:SCHEDULES_PER_LOOK])
    return sorted(ids)[:SCHEDULES_PER_LOOK]


def _invoke_in_passes(ids: Sequence[int], *, now: datetime, wait: bool) -> None:
    """Invoke schedules in passes of limited size, however many occurrences are pending.

    Schedules that another process has locked are skipped, unless `wait` is true.
    """
    for start in range(0, len(ids), SCHEDULES_PER_PASS):
        todo = ids[start : start + SCHEDULES_PER_PASS]
        size = len(todo)
        while todo:
            some, others = todo[:size], todo[size:]
            left = _invoke_some(some, now=now, wait=wait)
            # Lock and read only about as many as one pass can complete.
            size = 2 * (len(some) - len(left))
            todo = [*left, *others]


def _invoke_some(ids: Sequence[int], *, now: datetime, wait: bool) -> Sequence[int]:
    """Invoke these schedules in one pass; return the ids of those that are left for the next pass.

    If the database refuses the whole pass, the schedules are invoked one by one, so that a faulty schedule
    does not block the others.
    """
    try:
        with transaction.atomic():
            return account_and_settle(Schedule.objects.lock_in_order(ids, skip_locked=not wait), now).left
    except AWAY as error:
        # Locked, or the database became unavailable: the next tick repeats it.
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
    return ()


def account_and_settle(schedules: Sequence[Schedule], now: datetime) -> Pass:
    """Count the ended executions of these locked schedules, and decide which occurrences start.

    If there are too many occurrences, the last schedules are left for the next pass.
    """
    paused = [schedule.pk for schedule in schedules if schedule.is_paused]
    waiting = Occurrence.objects.waiting(
        [schedule.pk for schedule in schedules], paused=paused, now=now, limit=OCCURRENCES_PER_PASS + 1
    )
    left: list[int] = []
    if len(waiting) > OCCURRENCES_PER_PASS:
        first, last = waiting[0].schedule_id, waiting[-1].schedule_id
        done = last if first == last else last - 1
        left = [schedule.pk for schedule in schedules if schedule.pk > done]
        schedules = [schedule for schedule in schedules if schedule.pk <= done]
        waiting = [occurrence for occurrence in waiting if occurrence.schedule_id <= done]
    if just_paused := _account(schedules, now):
        held = Occurrence.AUTOMATIC_SOURCES
        waiting = [o for o in waiting if o.source not in held or o.schedule_id not in just_paused]
    return Pass(*_settle(schedules, waiting, now), left) if waiting else Pass(left=left)


def _account(schedules: Sequence[Schedule], now: datetime) -> set[int]:
    """Add each ended execution to its schedule's counters, once; return the ids of newly paused schedules.

    A schedule is paused if too many of its executions have failed.
    """
    by_pk = {schedule.pk: schedule for schedule in schedules}
    ended = Execution.objects.account(list(by_pk), now=now)
    failing: dict[int, str] = {}
    for execution in ended:
        schedule = by_pk[execution.schedule_id]
        schedule.count_outcome(execution.status, result=execution.result, error=execution.error)
        if execution.status == Execution.Status.FAILED and schedule.is_failing:
            failing[schedule.pk] = schedule.failing_note
    changed = {execution.schedule_id: by_pk[execution.schedule_id] for execution in ended}
    if changed:
        update_each(
            Schedule, OUTCOME, [[s.pk, *(getattr(s, name) for name in OUTCOME)] for s in changed.values()]
        )
    _notice_failures(ended, by_pk, now)
    return {pk for pk, note in failing.items() if by_pk[pk].pause_over_failures(note, now=now)}


def _notice_failures(ended: Sequence[Accounted], by_pk: Mapping[int, Schedule], now: datetime) -> None:
    """Report the recent outcomes of each schedule that has new failures.

    The receivers of the report decide how many failures are too many.
    """
    new = Counter(each.schedule_id for each in ended if each.status in ("completed", "failed"))
    failed = {each.schedule_id for each in ended if each.status == "failed"}
    events = [
        Event(
            "schedule.failing",
            now,
            pk,
            {
                "outcomes": by_pk[pk].recent_outcomes,
                "new": new[pk],
                "last_failure": by_pk[pk].last_failure,
            },
        )
        for pk in sorted(failed)
    ]
    if events:
        noticed.send(Schedule, events=events)


def _settle(
    schedules: Sequence[Schedule], waiting: Sequence[Waiting], now: datetime
) -> tuple[list[tuple[int, str, str, int | None]], datetime]:
    """Decide which waiting occurrences start, wait, are skipped or are missed, and carry out the decisions.

    The schedules must be locked. Return the settled occurrences, as in Pass, and the time at which they were
    settled.
    """
    by_pk = {occurrence.id: occurrence for occurrence in waiting}
    running, now = _running(schedules, now)
    fates, now = _decide(schedules, waiting, running, now)
    starts, impossible = _plan([by_pk[fate.id] for fate in fates if fate.verdict == "start"], schedules)
    started = _start(starts, now)
    # Occurrences behind an impossible one have nothing to wait for, and cannot start for the same reason.
    impossible |= {fate.id: impossible[fate.behind] for fate in fates if fate.behind in impossible}
    settled = [
        _row(fate, started, impossible) for fate in fates if fate.verdict != "keep" or fate.id in impossible
    ]
    Occurrence.objects.settle_each(settled, now=now)
    missed = [by_pk[fate.id] for fate in fates if fate.verdict == "miss"]
    notice_missed([(o.schedule_id, o.nominal_at) for o in missed], now=now)
    waits = [fate for fate in fates if fate.verdict == "keep" and fate.id not in impossible]
    kept = [fate for fate in waits if by_pk[fate.id].is_due]
    if kept:
        blockers = [(by_pk[fate.id], fate.blocked_by or started.get(fate.behind or 0)) for fate in kept]
        Occurrence.objects.keep(blockers, now=now)
    _count(schedules, [(by_pk[pk], status, reason) for pk, status, reason, _ in settled], now)
    moved = {by_pk[pk].schedule_id for pk, *_ in settled}
    backfills = {by_pk[pk].schedule_id for pk, *_ in settled if by_pk[pk].source == "backfill"}
    _make_room([schedule for schedule in schedules if schedule.pk in moved], now, backfills=backfills)
    return settled, now


def _make_room(schedules: Sequence[Schedule], now: datetime, *, backfills: Collection[int]) -> None:
    """Let backfills and event sources add more occurrences, because pending ones have been settled.

    `backfills` are the ids of the schedules whose settled occurrences came from a backfill.
    """
    if backfills:
        Backfill.objects.make_room(backfills, now=now)
    if eventful := [schedule.pk for schedule in schedules if schedule.topics]:
        for source in registry.event_sources:
            source.make_room(eventful, now=now)


def _start(starts: Sequence[Start], now: datetime) -> dict[int, int]:
    """Start these executions; return a dict from occurrence id to execution id."""
    executions = Execution.objects.start(starts, now=now) if starts else []
    return {
        start.occurrence.id: pk
        for start, pk in zip(starts, executions, strict=True)
        if start.occurrence is not None
    }


def _running(schedules: Sequence[Schedule], now: datetime) -> tuple[dict[int, list[Running]], datetime]:
    """Return a dict from schedule id to its running executions, and the time to record for the decisions.

    This time is `now` or, if it is later, the latest start or end of an execution: the caller read the clock
    before it got the locks. A start must not be dated before the end that it waited for, nor a skip before
    the start of the execution that blocks it.
    """
    running: dict[int, list[Running]] = defaultdict(list)
    own = {schedule.pk for schedule in schedules}
    for execution in Execution.objects.around(list(own), now=now):
        if execution.is_running:
            running[execution.schedule_id].append(
                Running(execution.id, execution.source, execution.is_cancelling)
            )
        if execution.schedule_id in own:
            now = max(now, execution.changed_at)
    return running, now


def _decide(
    schedules: Sequence[Schedule],
    waiting: Sequence[Waiting],
    running: dict[int, list[Running]],
    now: datetime,
) -> tuple[list[Fate], datetime]:
    """Decide which occurrences start, wait, are skipped or are missed; stop executions that must make way.

    Return the decisions, and the time at which they take effect.
    """
    pending: dict[int, list[Pending]] = defaultdict(list)
    policies = {schedule.pk: schedule.overlap for schedule in schedules}
    for o in waiting:
        policy = o.overlap or policies[o.schedule_id]
        kept = o.kept_at is not None
        pending[o.schedule_id].append(Pending(o.id, o.source, policy, o.nominal_at, o.planned_at, kept))
    decisions = [
        decide(
            pending[schedule.pk],
            running[schedule.pk],
            catch_up_seconds=schedule.catch_up_seconds,
            remaining=schedule.remaining,
            now=now,
        )
        for schedule in schedules
    ]
    made_way_at = _make_way(schedules, decisions, now)
    return [fate for decision in decisions for fate in decision.fates], made_way_at


def _make_way(schedules: Sequence[Schedule], decisions: Sequence[Decision], now: datetime) -> datetime:
    """Stop executions that must make way for newer ones; return the time at which decisions take effect.

    This time is usually `now`. If executions to be terminated have already ended by themselves, later than
    `now`, it is the latest of their ends. The executions are locked in the order of their ids, as in all code
    that locks several executions.
    """
    terminated = {pk for decision in decisions for pk in decision.terminate}
    stopped = terminated.union(*(decision.cancel for decision in decisions))
    by_pk = {schedule.pk: schedule for schedule in schedules}
    why = "Stopped by the overlap policy to make way for a newer run of this schedule."
    made_way_at = now
    for execution in Execution.objects.lock().filter(pk__in=stopped) if stopped else ():
        assert execution.schedule_id is not None
        by = Initiator.schedule(by_pk[execution.schedule_id])
        if execution.pk not in terminated:
            execution.cancel(initiator=by, now=now, reason=why)
        elif not execution.terminate(initiator=by, now=now, reason=why):
            made_way_at = max(made_way_at, execution.finished_at or now)
    return made_way_at


def _plan(
    occurrences: Sequence[Waiting], schedules: Sequence[Schedule]
) -> tuple[list[Start], dict[int, str]]:
    """Return the executions to start, and a dict from the id of each other occurrence to why it cannot start.

    An error in the definition of one schedule does not affect the other schedules.
    """
    by_pk = {schedule.pk: schedule for schedule in schedules}
    steps = Step.lines_of(list({occurrence.schedule_id for occurrence in occurrences}))
    before = Execution.objects.in_bulk([o.retry_of for o in occurrences if o.retry_of])
    events = _events(occurrences)
    starts, impossible = [], {}
    for occurrence in occurrences:
        schedule = by_pk[occurrence.schedule_id]
        try:
            if occurrence.retry_of in before:
                starts.append(_again(before[occurrence.retry_of], schedule, occurrence))
            elif occurrence.retry_of:
                impossible[occurrence.id] = f"execution {occurrence.retry_of} no longer exists"
            elif steps[schedule.pk]:
                event = events.get(occurrence.initiator_id) if occurrence.source == "event" else None
                starts.append(Start.of(schedule, occurrence, steps[schedule.pk], event))
            else:
                impossible[occurrence.id] = "the schedule has no steps"
        except Exception as error:
            logger.error("schedule %s cannot be started: %s", schedule, error)
            impossible[occurrence.id] = f"cannot be started: {error}"[:200]
    return starts, impossible


def _events(occurrences: Sequence[Waiting]) -> dict[str, Mapping[str, Any]]:
    """Return a dict from event id (a string, as in `initiator_id`) to the event that caused an occurrence."""
    ids = {int(o.initiator_id) for o in occurrences if o.source == "event"}
    found = [source.events(ids) for source in registry.event_sources] if ids else []
    return {str(pk): event for each in found for pk, event in each.items()}


def _again(before: Execution, schedule: Schedule, occurrence: Waiting) -> Start:
    start = before.start_again(initiator=occurrence.initiator, whole=occurrence.is_whole)
    return start.for_occurrence(schedule, occurrence)


def _row(fate: Fate, started: dict[int, int], impossible: dict[int, str]) -> tuple[int, str, str, int | None]:
    """Return the decision on one occurrence, as (id, status, reason, blocked_by)."""
    if fate.id in impossible:
        return fate.id, Occurrence.Status.SKIPPED, impossible[fate.id], None
    if fate.verdict == "start":
        return fate.id, Occurrence.Status.STARTED, "", None
    if fate.verdict == "miss":
        return fate.id, Occurrence.Status.MISSED, fate.reason, None
    blocked_by = fate.blocked_by or started.get(fate.behind or 0)
    return fate.id, Occurrence.Status.SKIPPED, fate.reason, blocked_by


def _count(schedules: Sequence[Schedule], settled: Sequence[tuple[Waiting, str, str]], now: datetime) -> None:
    by_pk = {schedule.pk: schedule for schedule in schedules}
    counts = Counter(
        (occurrence.schedule_id, occurrence.source, status, reason) for occurrence, status, reason in settled
    )
    for (pk, source, status, reason), count in counts.items():
        by_pk[pk].count_settled(status, count, source=source, reason=reason, now=now)
    changed = {pk for pk, *_ in counts}
    update_each(
        Schedule,
        SETTLED,
        [[s.pk, *(getattr(s, name) for name in SETTLED)] for s in schedules if s.pk in changed],
    )


def _give_up(pk: int, error: Exception, now: datetime) -> None:
    """Skip the due occurrences of a schedule, because the database refuses to start them.

    Other schedules can then continue.
    """
    reason = f"could not be started: {error}".replace("\x00", "")[:200]
    with transaction.atomic():
        schedule = Schedule.objects.lock().get(pk=pk)
        waiting = schedule.occurrences.pending().filter(planned_at__lte=now)
        if schedule.is_paused:
            waiting = waiting.asked_for()
        skipped = waiting.settle(Occurrence.Status.SKIPPED, reason=reason, now=now)
        schedule.count_settled("skipped", skipped, source="", reason=reason, now=now)
        schedule.save(update_fields=SETTLED)
        _make_room([schedule], now, backfills=[pk])
