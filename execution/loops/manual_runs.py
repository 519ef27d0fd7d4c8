"""Manual runs: the occurrence is invoked in the process that asks, without waiting for a scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial

from django.conf import settings
from django.db import DatabaseError, transaction

from activities.models import Activity
from database.statements import AWAY, fetch, instant, planned_once
from execution.models import Execution
from operations.initiator import Initiator
from schedules.models import KeyReused, Occurrence, Refused, Schedule
from schedules.models.step import check_plain_text

from .invoker import Pass, account_and_settle, invoke_soon

FATE = ("status", "reason", "blocked_by", "due_at", "kept_at", "settled_at")
logger = logging.getLogger(__name__)


class Overlapping(Refused):
    """A manual run was refused because an execution of the schedule is still running."""

    def __init__(self, blocked_by: int) -> None:
        self.blocked_by = blocked_by
        super().__init__(
            f"Execution {blocked_by} is still running, and the overlap policy allows only one at a time."
        )


def trigger(
    schedule: Schedule,
    *,
    initiator: Initiator,
    now: datetime,
    at: datetime | None = None,
    key: str = "",
    overlap: str = "",
    retry_of: int | None = None,
    whole: bool = False,
) -> Occurrence:
    """Start a manual run, unless the overlap policy makes the run wait; return its occurrence.

    Requests with the same `key` stand for the same run. `at` is the nominal time of the run (by default,
    `now`). `overlap` replaces the overlap policy of the schedule. `retry_of` is the id of the execution to
    repeat: all steps if `whole`, otherwise only the steps that did not succeed.
    """
    if key:
        check_plain_text(key, "key")

    wanted = partial(
        Occurrence.manual,
        schedule,
        initiator=initiator,
        now=now,
        at=at,
        key=key,
        overlap=overlap,
        retry_of=retry_of,
        whole=whole,
    )
    try:
        return _trigger_in_turn(wanted, is_keyed=bool(key), now=now)
    except AWAY as error:
        logger.warning("schedule %s cannot be started now: %s", schedule, error)
        raise Refused(
            f"“{schedule}” was not started because the database is busy or unavailable. "
            "Try again in a few seconds."
        ) from error
    except DatabaseError as error:
        logger.exception("schedule %s cannot be started", schedule)
        raise Refused(f"“{schedule}” was not started because of a database error ({error}).") from error


def _trigger_in_turn(wanted: Callable[[], Occurrence], *, is_keyed: bool, now: datetime) -> Occurrence:
    request = wanted()
    try:
        return _trigger(request, is_keyed=is_keyed, now=now)
    except Overlapping as refused:
        if Execution.objects.filter(pk=refused.blocked_by).exists():
            raise
        # The blocker was started with this request and rolled back with it. Start it first.
        invoke_soon([request.schedule_id], now=now)
        return _trigger(wanted(), is_keyed=is_keyed, now=now)


def _trigger(wanted: Occurrence, *, is_keyed: bool, now: datetime) -> Occurrence:
    with transaction.atomic():
        [schedule] = Schedule.objects.lock_in_order([wanted.schedule_id])
        if is_keyed and (known := schedule.occurrences.filter(key=wanted.key).first()):
            return _same(known, wanted)
        if schedule.status == Schedule.Status.CLOSED:
            raise Refused(f"“{schedule}” is closed: it can no longer be run.")
        wanted.schedule = schedule
        wanted.clean_fields(exclude=["schedule", "backfill"])
        with planned_once():
            Occurrence.objects.ask(wanted)
            Activity.objects.record("trigger", schedule, initiator=wanted.initiator, now=now)
            _tell_fate(wanted, account_and_settle([schedule], now))
        if wanted.status == Occurrence.Status.SKIPPED and wanted.blocked_by:
            raise Overlapping(wanted.blocked_by)
        if wanted.status not in (Occurrence.Status.STARTED, Occurrence.Status.PENDING):
            raise Refused(f"“{schedule}” was not started: {wanted.reason}.")
        if wanted.status == Occurrence.Status.PENDING:
            _refuse_one_too_many(schedule)
    return wanted


def _tell_fate(wanted: Occurrence, done: Pass) -> None:
    """Update the occurrence in memory with the decision or, if it is still pending, with its stored row."""
    for pk, status, reason, blocked_by in done.settled:
        if pk == wanted.pk:
            wanted.learn(status, reason=reason, blocked_by=blocked_by, settled_at=done.settled_at)
            return
    sql = f"SELECT {', '.join(FATE)} FROM schedules_occurrence WHERE id = %s"
    for name, value in zip(FATE, fetch(sql, [wanted.pk])[0], strict=True):
        is_time = name.endswith("_at") and value is not None
        setattr(wanted, name, instant(value) if is_time else value)


def _refuse_one_too_many(schedule: Schedule) -> None:
    """Refuse a manual run if the maximum number of manual runs is waiting already.

    Unlike other occurrences, waiting manual runs are never dropped.
    """
    waiting = schedule.occurrences.pending().filter(source=Occurrence.Source.MANUAL).count()
    if waiting > settings.JIM_BUFFER_LIMIT:
        raise Refused(
            f"{waiting - 1:,} runs of “{schedule}” are already waiting, which is the maximum. "
            "Try again after one of them has started."
        )


def _same(known: Occurrence, wanted: Occurrence) -> Occurrence:
    """Return the occurrence of a repeated request; raise KeyReused if the two requests differ."""
    if known.asks_the_same_as(wanted):
        return known
    raise KeyReused(known.key.removeprefix("manual/"))
