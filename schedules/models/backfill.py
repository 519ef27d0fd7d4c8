"""Backfills: requests to run a schedule for a past range. Their occurrences are created in slices."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Unpack

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Count, Q
from django.urls import reverse

from activities.models import Activity
from database.wake import wake
from operations.initiator import Initiator
from schedules.spec import Spec, SpecError
from schedules.spec.wall_calendar import FIRST
from schedules.spec.wording import counted, listed
from text.clean import clean_text
from text.words import on_the_clock

from .backfill_queryset import BackfillQuerySet, BackfillRequest, share_of_schedule
from .occurrence import Occurrence, Overlap, named_time
from .refusals import Refused
from .schedule import Schedule

MOST_TIMES = 1_000_000
MOST_OPEN = 100
TIMES_PER_LOOK = 1_000
LONGEST_REASON = 500
MOMENT = timedelta(microseconds=1)
HOUR = timedelta(hours=1)
# By default, times that have run are not run again, and the others run one after the other.
USUAL_WHICH = "missing"
USUAL_OVERLAP = Overlap.BUFFER_ALL

WAITING = "already waiting"
EXECUTED = "already executed"
NEVER_EXECUTED = "never executed"
NOT_FAILED = "did not fail last time"
FORGOTTEN = "older than the history"


@dataclass
class Survey:
    """The scheduled times in a range: which of them would run, and why the others would not."""

    total: int = 0
    times: list[datetime] = field(default_factory=list)
    last: datetime | None = None
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def chosen(self) -> int:
        return self.total - self.left_out.total()

    def add(self, chosen: Sequence[datetime], left_out: Sequence[str], *, limit: int) -> None:
        self.total += len(chosen) + len(left_out)
        self.left_out.update(left_out)
        self.times += chosen[: limit - len(self.times)]
        self.last = chosen[-1] if chosen else self.last

    def refuse_if_empty(self) -> None:
        if not self.total:
            raise ValidationError(
                {"end_at": "The schedule has no scheduled times in this range: choose another range."}
            )
        if not self.chosen:
            why = listed([f"{count:,} {reason}" for reason, count in sorted(self.left_out.items())])
            raise ValidationError(
                {
                    "which": "This backfill would not start any runs. "
                    f"Scheduled times in the range: {self.total:,} ({why}). "
                    "Choose another range, or “All times”."
                }
            )


class Progress(NamedTuple):
    """The progress of a backfill in numbers.

    Of the `total` times in the range, `passed` have been processed so far, and `added` of these got an
    occurrence. These occurrences are `waiting`, `started` or, if they were skipped or cancelled,
    `not_started`. `running` is the number of executions in progress.
    """

    total: int
    passed: int
    added: int
    waiting: int
    started: int
    running: int
    not_started: int

    @property
    def settled(self) -> int:
        return self.started + self.not_started


class Backfill(models.Model):
    """A request to run a schedule for all or some of its times in a past range."""

    class Status(models.TextChoices):
        OPEN = "open"
        DONE = "done"
        CANCELLED = "cancelled"

    class Which(models.TextChoices):
        ALL = "all", "All times"
        MISSING = "missing", "Only times without an execution"
        FAILED = "failed", "Only times whose last execution failed"

    schedule = models.ForeignKey(
        "schedules.Schedule", models.CASCADE, related_name="backfills", db_index=False
    )
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    which = models.CharField(max_length=8, choices=Which.choices, default=USUAL_WHICH)
    overlap = models.CharField(max_length=16, choices=Overlap.choices, default=USUAL_OVERLAP)
    spec = models.JSONField(help_text="The schedule's spec at the time of the request.")
    calendars = models.JSONField(default=dict)
    status = models.CharField(max_length=9, choices=Status.choices, default=Status.OPEN)
    reason = models.CharField(
        max_length=LONGEST_REASON, blank=True, help_text="Why the backfill was cancelled."
    )
    total = models.PositiveBigIntegerField(help_text="Number of scheduled times in the range.")
    passed_count = models.PositiveBigIntegerField(
        default=0, help_text="Number of scheduled times processed so far."
    )
    added_count = models.PositiveBigIntegerField(
        default=0, help_text="Number of scheduled times for which an occurrence was created."
    )
    processed_until = models.DateTimeField()
    slice_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When the scheduler continues with the backfill. Empty while too many occurrences of "
        "backfills are pending, and when the backfill has ended.",
    )
    key = models.CharField(
        max_length=64,
        blank=True,
        help_text="The idempotency key of the form from which the backfill was requested.",
    )
    initiator_type = models.CharField(max_length=16)
    initiator_id = models.CharField(max_length=64, blank=True)
    initiator_name = models.CharField(max_length=255)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    # How many of the times will run: set by `count`, and not stored.
    chosen = 0

    objects = BackfillQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["schedule", "key"], name="backfill_once", condition=~Q(key="")),
        ]
        indexes = [
            models.Index(fields=["slice_at"], name="backfill_due", condition=Q(status="open")),
            models.Index(fields=["schedule", "-id"], name="backfill_of_schedule"),
        ]

    def __str__(self) -> str:
        return f"{self.start_at:%Y-%m-%d %H:%M} to {self.end_at:%Y-%m-%d %H:%M} UTC"

    def get_absolute_url(self) -> str:
        return reverse("web:backfill", args=[self.pk])

    @property
    def initiator(self) -> Initiator:
        return Initiator(self.initiator_type, self.initiator_id, self.initiator_name)

    @property
    def compiled_spec(self) -> Spec:
        return Spec.parse(self.spec, self.calendars)

    def generate(self, now: datetime) -> int:
        """Create occurrences for the next slice of times, and return how many were created.

        Return 0 if the next slice is not due, or if another process has locked the schedule.
        """
        with transaction.atomic():
            schedule = Schedule.objects.lock(skip_locked=True).filter(pk=self.schedule_id).first()
            current = Backfill.objects.due(now).filter(pk=self.pk).first() if schedule else None
            if schedule is None or current is None:
                return 0
            current.schedule = schedule
            return current._add_slice(now)

    def cancel(self, *, initiator: Initiator, now: datetime, reason: str = "") -> bool:
        """Cancel the backfill and its pending occurrences; return False if there was nothing to cancel.

        Running executions continue. A backfill with the status “done” can also be cancelled while some of its
        occurrences are pending.
        """
        with transaction.atomic():
            schedule = Schedule.objects.lock().get(pk=self.schedule_id)
            reason = clean_text(reason)[:LONGEST_REASON]
            ended = (
                Backfill.objects.open()
                .filter(pk=self.pk)
                .update(status=self.Status.CANCELLED, reason=reason, slice_at=None, finished_at=now)
            )
            stopped = self.occurrences.settle(
                Occurrence.Status.CANCELLED, reason="backfill cancelled", now=now
            )
            if not ended and not stopped:
                return False
            Backfill.objects.make_room([self.schedule_id], now=now)
            details = {"backfill": self.pk, "stopped": stopped}
            Activity.objects.record(
                "cancel_backfill", schedule, initiator=initiator, now=now, message=reason, details=details
            )
        return True

    def progress(self, *, running: int | None = None) -> Progress:
        """Return the progress; `running` is the number of running executions, or None to count them."""
        statuses = self.occurrences.order_by().values_list("status").annotate(Count("pk"))
        counts: Counter[str] = Counter(dict(statuses))
        waiting, started = counts.pop("pending", 0), counts.pop("started", 0)
        if running is None:
            mine = self.schedule.executions.filter(occurrence__backfill=self.pk)
            running = mine.filter(status="in_progress").count()
        return Progress(
            self.total,
            self.passed_count,
            self.added_count,
            waiting,
            started,
            running,
            not_started=counts.total(),
        )

    def clean(self) -> None:
        if self.start_at < FIRST:
            raise ValidationError({"start_at": f"Choose a start in {FIRST.year} or later."})
        if self.end_at < self.start_at:
            raise ValidationError({"end_at": "The range ends before it starts: choose a later end."})
        if self.end_at > self.created_at:
            raise ValidationError({"end_at": "The range ends in the future: choose an end time in the past."})
        if self.which != self.Which.ALL and self.start_at < known_since(self.created_at):
            raise ValidationError({"start_at": self._unknown_words()})

    def _unknown_words(self) -> str:
        """Return the error message for a start that is too early.

        The message suggests the earliest start that is possible, rounded up to a whole hour.
        """
        whole_hour = known_since(self.created_at).replace(minute=0, second=0, microsecond=0) + HOUR
        kept, zone = counted(settings.JIM_RETENTION_DAYS, "day"), self.schedule.zone
        return (
            f"Executions are kept for {kept}, so it is not known which earlier times have run. Choose a "
            f"start of {on_the_clock(whole_hour, zone)} {zone} or later, or choose “{self.Which.ALL.label}”."
        )

    @classmethod
    def draft(cls, schedule: Schedule, *, now: datetime, **asked: Unpack[BackfillRequest]) -> Backfill:
        """Return a checked but unsaved backfill with the current spec of its schedule."""
        draft = cls(schedule=Schedule.objects.get(pk=schedule.pk), slice_at=now, created_at=now, **asked)
        draft.clean_fields(
            exclude={field.name for field in cls._meta.fields} - BackfillRequest.__annotations__.keys()
        )
        draft.clean()
        draft.spec, draft.calendars = draft.schedule.spec, draft.schedule.calendars
        draft.processed_until = draft.start_at - MOMENT
        draft._refuse_without_times()
        return draft

    def _refuse_without_times(self) -> None:
        self._refuse_if_closed()
        try:
            is_manual = self.compiled_spec.is_manual
        except SpecError as error:
            raise self._broken(error) from error
        if is_manual:
            raise Refused(f"“{self.schedule}” has no scheduled times, so there is nothing to backfill.")

    def _refuse_if_closed(self) -> None:
        if self.schedule.status == Schedule.Status.CLOSED:
            raise Refused(f"“{self.schedule}” is closed: it can no longer be run.")

    def _broken(self, error: SpecError) -> Refused:
        return Refused(f"The spec of “{self.schedule}” is invalid: {error}")

    def survey(self, *, limit: int) -> Survey:
        """Return which times in the range would run, listing at most the first `limit` of them.

        The range is read in slices, so that memory use stays constant. Nothing is locked.
        """
        survey = Survey()
        try:
            for times in self._slices():
                chosen, left_out = self._choose(times, now=self.created_at)
                survey.add(chosen, left_out, limit=limit)
                if survey.total > MOST_TIMES:
                    self._refuse_so_many(survey.total, until=times[-1])
        except SpecError as error:
            raise self._broken(error) from error
        return survey

    def _slices(self) -> Iterator[list[datetime]]:
        spec, after = self.compiled_spec, self.processed_until
        while times := spec.times(after, self.end_at, limit=TIMES_PER_LOOK):
            yield times
            after = times[-1]

    def _refuse_so_many(self, count: int, *, until: datetime) -> None:
        """Raise ValidationError with an estimate of how many times the range has.

        The estimate is based on `count`, the number of times up to `until`: counting all could take hours.
        """
        estimate = count * ((self.end_at - self.start_at) / (until - self.start_at))
        thousands = math.ceil(estimate / 1_000)
        raise ValidationError(
            {
                "end_at": f"The range has about {thousands:,},000 scheduled times: choose a shorter range "
                f"with at most {MOST_TIMES:,} times."
            }
        )

    def count(self, initiator: Initiator) -> Backfill:
        survey = self.survey(limit=0)
        survey.refuse_if_empty()
        self.total, self.chosen = survey.total, survey.chosen
        self.initiator_type, self.initiator_id = initiator.type, initiator.id
        self.initiator_name = initiator.name
        return self

    def asked_before(self) -> Backfill | None:
        """Return an earlier backfill with the same key, or None; raise Refused if its options differ."""
        known = self.schedule.backfills.filter(key=self.key).first() if self.key else None
        if known and any(
            getattr(known, name) != getattr(self, name) for name in BackfillRequest.__annotations__
        ):
            raise Refused(
                f"A backfill of “{self.schedule}” with other values was already requested with this form. "
                "Open the form again to request another backfill."
            )
        return known

    def open(self) -> Backfill:
        """Save and return this backfill, or return an earlier one with the same key; call `count` first."""
        with transaction.atomic():
            self.schedule = Schedule.objects.lock().get(pk=self.schedule_id)
            if known := self.asked_before():
                return known
            self._take_place()
            details = self._as_json() | {"chosen": self.chosen}
            Activity.objects.record(
                "backfill", self.schedule, initiator=self.initiator, now=self.created_at, details=details
            )
            wake("jim_schedules")
        return self

    def _take_place(self) -> None:
        """Save the backfill; the caller has locked the schedule.

        Raise Refused if the schedule was closed, its spec was changed, or it has too many open backfills.
        """
        self._refuse_if_closed()
        if (self.schedule.spec, self.schedule.calendars) != (self.spec, self.calendars):
            raise Refused(
                f"The scheduled times of “{self.schedule}” have just changed. Check the new times, then try "
                "again."
            )
        if self.schedule.backfills.open().count() >= MOST_OPEN:
            raise Refused(
                f"“{self.schedule}” has {MOST_OPEN} open backfills, which is the maximum: wait until one of "
                "them is done, or cancel one."
            )
        self.save(force_insert=True)

    def _as_json(self) -> dict[str, Any]:
        return {
            "backfill": self.pk,
            "start_at": named_time(self.start_at),
            "end_at": named_time(self.end_at),
            "which": self.which,
            "overlap": self.overlap,
            "total": self.total,
        }

    def _add_slice(self, now: datetime) -> int:
        """Save the occurrences of the next slice of times and the progress; return how many were created.

        The caller has locked the schedule, so that no time is left out or processed twice.
        """
        room = self._room()
        size = min(room, settings.JIM_BACKFILL_SLICE)
        if size <= 0:
            self._move(slice_at=None)
            return 0
        times = self.compiled_spec.times(self.processed_until, self.end_at, limit=size + 1)
        passed = times[:size]
        chosen, _ = self._choose(passed, now=now)
        Occurrence.objects.bulk_create(
            [Occurrence.of_backfill(self, at, now=now) for at in chosen], ignore_conflicts=True
        )
        counts = {
            "passed_count": self.passed_count + len(passed),
            "added_count": self.added_count + len(chosen),
        }
        if len(times) > size:
            slice_at = now if len(chosen) < room else None
            self._move(**counts, processed_until=passed[-1], slice_at=slice_at)
        else:
            done = {"status": self.Status.DONE, "finished_at": now, "slice_at": None}
            self._move(**counts, **done, processed_until=self.end_at)
        return len(chosen)

    def _move(self, **fields: Any) -> None:
        Backfill.objects.open().filter(pk=self.pk).update(**fields)

    def _room(self) -> int:
        """Return how many occurrences may be added now; the open backfills of a schedule share one limit."""
        share = share_of_schedule()
        held = self.schedule.occurrences.pending().filter(source=Occurrence.Source.BACKFILL)
        counts = held.aggregate(all=Count("pk"), own=Count("pk", filter=Q(backfill=self.pk)))
        part = max(1, share // self.schedule.backfills.open().count())
        room: int = min(share - counts["all"], part - counts["own"])
        return room

    def _choose(self, times: Sequence[datetime], *, now: datetime) -> tuple[list[datetime], list[str]]:
        """Return the times to run, and for each of the other times the reason why it will not run."""
        if self.which == self.Which.ALL:
            return list(times), []
        # A long backfill may reach times whose history was deleted after the request.
        known = times[bisect_left(times, known_since(now)) :]
        left_out = [FORGOTTEN] * (len(times) - len(known))
        waiting, outcomes = self._standing(known)
        chosen = []
        for at in known:
            if reason := WAITING if at in waiting else self._unwanted(outcomes.get(at)):
                left_out.append(reason)
            else:
                chosen.append(at)
        return chosen, left_out

    def _unwanted(self, outcome: str | None) -> str:
        if self.which == self.Which.MISSING:
            return EXECUTED if outcome is not None else ""
        if outcome is None:
            return NEVER_EXECUTED
        return "" if outcome == "failed" else NOT_FAILED

    def _standing(self, times: Sequence[datetime]) -> tuple[set[datetime], dict[datetime, str]]:
        """Return the times with a pending occurrence, and the last outcome of each time that was executed.

        Occurrences from all sources are considered, not only those of backfills. The outcome is an empty
        string if the execution was deleted.
        """
        rows = self.schedule.occurrences.filter(
            nominal_at__in=times, status__in=[Occurrence.Status.PENDING, Occurrence.Status.STARTED]
        )
        waiting: set[datetime] = set()
        outcomes: dict[datetime, str] = {}
        for at, status, outcome in rows.order_by("execution__id").values_list(
            "nominal_at", "status", "execution__status"
        ):
            if status == Occurrence.Status.PENDING:
                waiting.add(at)
            elif outcome:
                outcomes[at] = outcome
            else:
                outcomes.setdefault(at, "")  # the execution was deleted as too old
        return waiting, outcomes


def known_since(now: datetime) -> datetime:
    """Return the time before which history may have been deleted."""
    return now - timedelta(days=settings.JIM_RETENTION_DAYS)
