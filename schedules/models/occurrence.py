"""Occurrences: the nominal times of schedules and the requests to run them, with their outcomes."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.conf import settings
from django.db import connection, models
from django.db.models import F, Q

from activities.signals import Event, noticed
from database.statements import among, fetch, insert_each, instant, literal, update_each, write, written
from operations.initiator import Initiator
from schedules.overlap import latest_missed
from text.words import exact

if TYPE_CHECKING:
    from .backfill import Backfill
    from .schedule import Schedule


MANY = 20


class Overlap(models.TextChoices):
    SKIP = "skip", "Skip: do not start a run while another execution is running"
    BUFFER_ONE = "buffer_one", "Buffer one: only the latest run that is due waits for the running execution"
    BUFFER_ALL = "buffer_all", "Buffer all: every run that is due waits for its turn"
    CANCEL_OTHER = "cancel_other", "Cancel other: cancel the running execution, then start the latest run"
    TERMINATE_OTHER = (
        "terminate_other",
        "Terminate other: end the running execution at once, then start the latest run",
    )
    ALLOW_ALL = "allow_all", "Allow all: start every run, even while other executions are running"


class Waiting(NamedTuple):
    """The fields of a pending occurrence that the invoker needs. A schedule can have a thousand of them."""

    id: int
    schedule_id: int
    source: str
    overlap: str
    nominal_at: datetime
    planned_at: datetime
    kept_at: datetime | str | None
    is_due: bool
    initiator_type: str
    initiator_id: str
    initiator_name: str
    retry_of: int | None
    is_whole: bool

    @property
    def initiator(self) -> Initiator:
        return Initiator(self.initiator_type, self.initiator_id, self.initiator_name)


# Times are read as text, because the database driver needs more time to convert them than to read the rest of
# a row.
_WAITING = ", ".join(
    {
        "nominal_at": "CAST(nominal_at AS text)",
        "planned_at": "CAST(planned_at AS text)",
        "is_due": "due_at IS NOT NULL",
    }.get(name, name)
    for name in Waiting._fields
)


class Automatic(NamedTuple):
    """An automatic occurrence that is not stored yet. After downtime, there can be thousands of them."""

    schedule: int
    key: str
    nominal_at: datetime
    planned_at: datetime
    due_at: datetime | None
    initiator_id: str
    initiator_name: str
    status: str = "pending"
    reason: str = ""
    settled_at: datetime | None = None

    def settled(self, status: str, reason: str, now: datetime) -> Automatic:
        return self._replace(due_at=None, status=status, reason=reason, settled_at=now)


def notice_missed(missed: Sequence[tuple[int, datetime]], *, now: datetime) -> None:
    """Send one event per schedule about its missed times; `missed` has pairs (schedule id, nominal time)."""
    times: dict[int, list[datetime]] = defaultdict(list)
    for schedule_id, at in missed:
        times[schedule_id].append(at)
    events = [
        Event(
            "schedule.missed",
            now,
            schedule_id,
            {"count": len(own), "first": min(own).isoformat(), "last": max(own).isoformat()},
        )
        for schedule_id, own in times.items()
    ]
    if events:
        noticed.send(Occurrence, events=events)


class OccurrenceQuerySet(models.QuerySet["Occurrence"]):
    def add(self, occurrences: Sequence[Automatic], *, now: datetime) -> None:
        """Insert the occurrences that do not exist yet, and send events about missed ones."""
        same = {
            "source": Occurrence.Source.AUTO,
            "overlap": "",
            "is_whole": False,
            "initiator_type": "schedule",
            "created_at": now,
        }
        insert_each(Occurrence, Automatic._fields, occurrences, same=same, unless_known=True)
        notice_missed([(o.schedule, o.nominal_at) for o in occurrences if o.status == "missed"], now=now)

    def ask(self, wanted: Occurrence) -> None:
        """Insert the occurrence `wanted`, and set its id. Plain SQL is much faster here than the ORM."""
        fields = [field for field in Occurrence._meta.concrete_fields if not field.primary_key]
        row = [getattr(wanted, field.attname) for field in fields]
        [(wanted.pk,)] = insert_each(Occurrence, [field.name for field in fields], [row], returning="id")
        wanted._state.adding = False

    def pending(self) -> OccurrenceQuerySet:
        return self.filter(status=literal(Occurrence.Status.PENDING))

    def automatic(self) -> OccurrenceQuerySet:
        return self.filter(source=Occurrence.Source.AUTO)

    def asked_for(self) -> OccurrenceQuerySet:
        """Keep the occurrences of manual runs and backfills, which start even if the schedule is paused."""
        return self.exclude(source__in=Occurrence.AUTOMATIC_SOURCES)

    def unasked_for(self) -> OccurrenceQuerySet:
        return self.filter(source__in=Occurrence.AUTOMATIC_SOURCES)

    def due(self, now: datetime) -> OccurrenceQuerySet:
        """Keep the pending occurrences that the invoker has to check; exclude suspended and blocked ones."""
        return self.pending().filter(due_at__lte=now)

    def buffered(self) -> OccurrenceQuerySet:
        """Keep pending occurrences that count towards the buffer limit; backfills have their own limit."""
        return self.pending().exclude(source=Occurrence.Source.BACKFILL)

    def crowding(self, schedule_ids: Sequence[int]) -> set[int]:
        """Return the ids of those schedules that have more occurrences in the buffer than allowed."""
        theirs, params = among("schedule_id", schedule_ids)
        rows = fetch(
            f"SELECT schedule_id FROM schedules_occurrence WHERE status = 'pending' AND {theirs} "
            "AND source <> 'backfill' GROUP BY schedule_id HAVING COUNT(*) > %s",
            [*params, settings.JIM_BUFFER_LIMIT],
        )
        return {pk for (pk,) in rows}

    def missed(self, catch_up_seconds: int | None, *, now: datetime) -> OccurrenceQuerySet:
        """Keep the occurrences that are too late for the catch-up window, by the same rule as `is_missed`."""
        limit = latest_missed(catch_up_seconds, now)
        return self.none() if limit is None else self.filter(planned_at__lt=limit)

    def held(self) -> OccurrenceQuerySet:
        return self.pending().filter(due_at=None)

    def suspend(self) -> int:
        """Suspend pending automatic occurrences: the invoker ignores them until the schedule is resumed."""
        return self.pending().unasked_for().update(due_at=None)

    def release(self) -> int:
        """Let the invoker check suspended and blocked occurrences again."""
        return self.held().update(due_at=F("planned_at"))

    def settle(self, status: str, *, reason: str, now: datetime) -> int:
        return self.pending().update(status=status, reason=reason, settled_at=now)

    def waiting(
        self, schedule_ids: Sequence[int], *, paused: Sequence[int], now: datetime, limit: int
    ) -> list[Waiting]:
        """Return up to `limit` pending occurrences whose time has come, including those that are blocked.

        `paused` has the ids of the paused schedules. Of these, return only manual runs and backfills.
        """
        theirs, params = among("schedule_id", schedule_ids)
        held, held_params = among("schedule_id", paused) if paused else ("1 = 0", [])
        rows = fetch(
            f"SELECT {_WAITING} FROM schedules_occurrence "
            f"WHERE status = 'pending' AND planned_at <= %s AND {theirs} "
            f"AND (source NOT IN ('auto', 'event') OR NOT {held}) "
            "ORDER BY schedule_id, source <> 'manual', planned_at LIMIT %s",
            [connection.ops.adapt_datetimefield_value(now), *params, *held_params, limit],
        )
        return [Waiting._make((*row[:4], instant(row[4]), instant(row[5]), *row[6:])) for row in rows]

    def settle_each(self, fates: Sequence[tuple[int, str, str, int | None]], *, now: datetime) -> None:
        """Store the outcomes of occurrences, given as (id, status, reason, blocked_by).

        Equal outcomes are written together. Outcomes that are already stored are not changed.
        """
        alike: dict[tuple[str, str, int | None], list[int]] = defaultdict(list)
        for pk, status, reason, blocked_by in fates:
            alike[status, reason, blocked_by].append(pk)
        few = []
        for (status, reason, blocked_by), ids in alike.items():
            if len(ids) < MANY:
                few += [(pk, status, reason, blocked_by, now) for pk in ids]
                continue
            theirs, params = among("id", ids)
            given = [status, reason, blocked_by, connection.ops.adapt_datetimefield_value(now)]
            write(
                "UPDATE schedules_occurrence SET status = %s, reason = %s, blocked_by = %s, settled_at = %s "
                f"WHERE settled_at IS NULL AND {theirs}",
                [*given, *params],
            )
        if few:
            fields = ("status", "reason", "blocked_by", "settled_at")
            update_each(Occurrence, fields, few, where="t.settled_at IS NULL")

    def keep(self, blocked: Sequence[tuple[Waiting, int | None]], *, now: datetime) -> None:
        """Let occurrences wait; `blocked` has each occurrence with the id of the execution that blocks it.

        The invoker checks these occurrences again when an execution of their schedule has ended.
        """
        rows = [(o.id, None, instant(o.kept_at or now), "overlap", blocked_by) for o, blocked_by in blocked]
        fields = ("due_at", "kept_at", "reason", "blocked_by")
        update_each(Occurrence, fields, rows, where="t.settled_at IS NULL")

    def prune(self, *, before: datetime, limit: int) -> int:
        """Delete up to `limit` occurrences that were decided before `before` and have no execution left."""
        old = self.filter(settled_at__lt=before, execution=None).exclude(status=Occurrence.Status.PENDING)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]


class Occurrence(models.Model):
    """A nominal time of a schedule, or a request to run the schedule, with the outcome."""

    class Status(models.TextChoices):
        PENDING = "pending"
        STARTED = "started"
        SKIPPED = "skipped"
        MISSED = "missed"
        DROPPED = "dropped"
        CANCELLED = "cancelled"

    class Source(models.TextChoices):
        AUTO = "auto"
        MANUAL = "manual"
        BACKFILL = "backfill"
        EVENT = "event"

    # Occurrences from these sources wait while their schedule is paused.
    AUTOMATIC_SOURCES = (Source.AUTO, Source.EVENT)

    schedule = models.ForeignKey(
        "schedules.Schedule", models.CASCADE, related_name="occurrences", db_index=False
    )
    source = models.CharField(max_length=8, choices=Source.choices)
    key = models.CharField(max_length=200)
    nominal_at = models.DateTimeField()
    planned_at = models.DateTimeField(
        help_text="The earliest time to start. For scheduled runs: the nominal time plus jitter."
    )
    due_at = models.DateTimeField(
        null=True,
        help_text="When the occurrence can start. Empty while a pause or a running execution holds the "
        "occurrence back.",
    )
    kept_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="From this time on, the occurrence can wait for longer than the catch-up window.",
    )
    backfill = models.ForeignKey(
        "schedules.Backfill",
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="occurrences",
        db_index=False,
    )
    overlap = models.CharField(max_length=16, choices=Overlap.choices, blank=True)
    retry_of = models.BigIntegerField(
        null=True, blank=True, help_text="The execution that this retry repeats."
    )
    is_whole = models.BooleanField(
        default=False, help_text="Whether the retry also repeats the steps that succeeded."
    )
    status = models.CharField(max_length=9, choices=Status.choices, default=Status.PENDING)
    reason = models.CharField(max_length=200, blank=True)
    blocked_by = models.BigIntegerField(
        null=True, blank=True, help_text="The execution that blocked this occurrence."
    )
    initiator_type = models.CharField(max_length=16)
    initiator_id = models.CharField(max_length=64, blank=True)
    initiator_name = models.CharField(max_length=255)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    objects = OccurrenceQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "key"], name="occurrence_once")]
        # If several indexes fit, SQLite uses the one created last, so indexes with conditions come last.
        indexes = [
            models.Index(fields=["schedule", "-nominal_at"], name="occurrence_of_schedule"),
            models.Index(fields=["schedule", "id"], name="occurrence_newest"),
            models.Index(
                fields=["due_at"], name="occurrence_due", condition=Q(status="pending", due_at__isnull=False)
            ),
            models.Index(
                fields=["schedule", "planned_at"], name="occurrence_pending", condition=Q(status="pending")
            ),
            models.Index(
                fields=["backfill", "status"], name="occurrence_backfill", condition=Q(backfill__isnull=False)
            ),
            models.Index(
                fields=["settled_at"], name="occurrence_settled", condition=Q(settled_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_source_display()} {exact(self.nominal_at)} ({self.status})"

    @classmethod
    def manual(
        cls,
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
        """Return the unsaved occurrence of a manual run; `at` is its nominal time, by default now.

        `retry_of` is the id of the execution to repeat; steps that succeeded are repeated only with `whole`.
        """
        name = f"manual/{key or uuid.uuid4()}"
        occurrence = cls._new(schedule, cls.Source.MANUAL, name, at or now, initiator=initiator, now=now)
        occurrence.planned_at = occurrence.due_at = now
        occurrence.overlap = overlap
        occurrence.retry_of, occurrence.is_whole = retry_of, whole
        return occurrence

    @classmethod
    def of_backfill(cls, backfill: Backfill, at: datetime, *, now: datetime) -> Occurrence:
        key = f"backfill/{backfill.pk}/{named_time(at)}"
        occurrence = cls._new(
            backfill.schedule, cls.Source.BACKFILL, key, at, initiator=backfill.initiator, now=now
        )
        occurrence.planned_at = occurrence.due_at = now
        occurrence.backfill, occurrence.overlap = backfill, backfill.overlap
        return occurrence

    @classmethod
    def of_event(
        cls, schedule: Schedule, event_id: int, at: datetime, *, name: str, now: datetime
    ) -> Occurrence:
        """Return an unsaved occurrence for an event.

        The key of the occurrence is unique, so that an event starts the same schedule only once.
        """
        by = Initiator("event", str(event_id), name[:255])
        occurrence = cls._new(schedule, cls.Source.EVENT, f"event/{event_id}", at, initiator=by, now=now)
        occurrence.planned_at = now
        occurrence.due_at = None if schedule.is_paused else now
        return occurrence

    @classmethod
    def _new(
        cls, schedule: Schedule, source: str, key: str, at: datetime, *, initiator: Initiator, now: datetime
    ) -> Occurrence:
        return cls(
            schedule=schedule,
            source=source,
            key=key,
            nominal_at=at,
            initiator_type=initiator.type,
            initiator_id=initiator.id,
            initiator_name=initiator.name,
            created_at=now,
        )

    def learn(self, status: str, *, reason: str, blocked_by: int | None, settled_at: datetime | None) -> None:
        """Copy an outcome that is already stored in the database to this object."""
        self.status, self.reason = status, reason
        self.blocked_by, self.settled_at = blocked_by, settled_at

    def asks_the_same_as(self, other: Occurrence) -> bool:
        """Return whether two manual runs have the same options and the same nominal time.

        Two runs that were both requested without a nominal time count as having the same one.
        """
        at_once = self.nominal_at == self.created_at and other.nominal_at == other.created_at
        same = ("overlap", "retry_of", "is_whole")
        is_same = all(getattr(self, name) == getattr(other, name) for name in same)
        return is_same and (at_once or self.nominal_at == other.nominal_at)

    @property
    def initiator(self) -> Initiator:
        return Initiator(self.initiator_type, self.initiator_id, self.initiator_name)

    @property
    def lag(self) -> timedelta | None:
        return self.settled_at - self.planned_at if self.settled_at else None


def named_time(at: datetime) -> str:
    return f"{written(at)[:19].replace(' ', 'T')}Z"
