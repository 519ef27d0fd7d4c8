from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import Lower

from activities.models import Activity, Initiator
from activities.wake import wake

from . import registry
from .spec import Spec, SpecError

TIMES_PER_PASS = 1_000
EDIT_PASSES = 10
BUFFER_LIMIT = 1_000


class Conflict(Exception):
    """Somebody else changed the schedule first."""

    def __init__(self, token: int) -> None:
        self.token = token
        super().__init__(
            "Somebody else changed this schedule meanwhile. Load it again, then repeat your change."
        )


class Refused(Exception):
    """The schedule's state does not allow it; the message says why and what to do."""


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def open(self) -> ScheduleQuerySet:
        return self.exclude(status=Schedule.Status.CLOSED)

    def due(self, now: datetime) -> ScheduleQuerySet:
        return self.filter(next_run_at__lte=now)

    def unfilled(self) -> ScheduleQuerySet:
        return self.filter(processed_until=None)

    def snoozed_until(self, now: datetime) -> ScheduleQuerySet:
        return self.filter(status=Schedule.Status.PAUSED, paused_until__lte=now)

    def lock(self, *, skip_locked: bool = False) -> ScheduleQuerySet:
        return self.select_for_update(of=("self",), no_key=True, skip_locked=skip_locked)

    def define(
        self,
        *,
        steps: Sequence[Mapping[str, Any]],
        initiator: Initiator,
        now: datetime,
        paused: bool = False,
        **fields: Any,
    ) -> Schedule:
        """A new schedule with its steps, checked as a whole; nothing is saved if anything is wrong."""
        schedule = Schedule(**fields)
        schedule.check_definition(steps, now=now, spec_changed=True)
        if paused:
            schedule.status, schedule.paused_at = Schedule.Status.PAUSED, now
        schedule._restart_cursor(now)
        with transaction.atomic():
            schedule.save(force_insert=True)
            schedule._replace_steps(steps)
            Activity.objects.record(
                "create", schedule, initiator=initiator, now=now, details=schedule.definition()
            )
            wake("jim_schedules")
        return schedule


class Schedule(models.Model):
    class Status(models.TextChoices):
        RUNNING = "running"
        PAUSED = "paused"
        CLOSED = "closed"

    class Overlap(models.TextChoices):
        SKIP = "skip", "Skip: never two executions side by side"
        ALLOW_ALL = "allow_all", "Allow all: start even while others run"

    DEFINITION = ("name", "description", "spec", "overlap", "catch_up_seconds")

    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, max_length=1000)
    spec = models.JSONField(default=dict, blank=True)
    overlap = models.CharField(max_length=16, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up_seconds = models.PositiveIntegerField(
        "catch-up window (seconds)",
        null=True,
        blank=True,
        default=86_400,
        validators=[MaxValueValidator(315_360_000)],
        help_text="How late a missed time may still start. Empty: always; 0: never.",
    )

    status = models.CharField(max_length=8, choices=Status.choices, default=Status.RUNNING, editable=False)
    pause_note = models.CharField(max_length=1000, blank=True, editable=False)
    paused_at = models.DateTimeField(null=True, editable=False)
    paused_until = models.DateTimeField(null=True, editable=False)
    token = models.PositiveIntegerField(default=1, editable=False)

    processed_until = models.DateTimeField(null=True, editable=False)
    next_run_at = models.DateTimeField(null=True, editable=False)
    spec_error = models.CharField(max_length=500, blank=True, editable=False)

    started_count = models.PositiveBigIntegerField(default=0, editable=False)
    skipped_count = models.PositiveBigIntegerField(default=0, editable=False)
    missed_count = models.PositiveBigIntegerField(default=0, editable=False)
    failed_count = models.PositiveBigIntegerField(default=0, editable=False)
    last_run_at = models.DateTimeField(null=True, editable=False)
    last_outcome = models.CharField(max_length=16, blank=True, editable=False)

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        permissions = [
            ("run_schedule", "Can run and cancel schedules"),
            ("define_code", "Can define steps that run code"),
        ]
        constraints = [
            models.UniqueConstraint(
                Lower("name"),
                condition=~Q(status="closed"),
                name="schedule_name_once",
                violation_error_message="There is a schedule with this name already: choose another name.",
            ),
        ]
        indexes = [
            models.Index(fields=["next_run_at"], name="schedule_due", condition=Q(next_run_at__isnull=False)),
            models.Index(fields=["id"], name="schedule_unfilled", condition=Q(processed_until=None)),
            models.Index(
                fields=["paused_until"], name="schedule_snoozed", condition=Q(paused_until__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def compiled_spec(self) -> Spec:
        return Spec.parse(self.spec)

    @property
    def spec_in_words(self) -> str:
        try:
            return self.compiled_spec.describe()
        except SpecError as error:
            return f"Broken: {error}"

    def definition(self) -> dict[str, Any]:
        """What a person wrote, as JSON: recorded with each change, compared to show differences."""
        steps = [step.as_json() for step in self.steps.all()] if self.pk else []
        return {name: getattr(self, name) for name in self.DEFINITION} | {"steps": steps}

    def edit(
        self,
        *,
        token: int,
        initiator: Initiator,
        now: datetime,
        changes: Mapping[str, Any],
        steps: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Changes the definition; what is pending, queued or running stays as it was."""
        if unknown := set(changes) - set(self.DEFINITION):
            raise ValidationError(dict.fromkeys(sorted(unknown), "There is no such field to edit."))
        with transaction.atomic():
            self._take(token)
            before = self.definition()
            if "spec" in changes and changes["spec"] != self.spec:
                self._generate_until(now)
            for name, value in changes.items():
                setattr(self, name, value)
            after_steps = before["steps"] if steps is None else steps
            spec_changed = self.spec != before["spec"]
            self.check_definition(after_steps, now=now, spec_changed=spec_changed)
            if spec_changed or self.spec_error:
                self._restart_cursor(now)
            if steps is not None:
                self._replace_steps(steps)
            self._save_moved()
            details = {"before": before, "after": self.definition()}
            Activity.objects.record("edit", self, initiator=initiator, now=now, details=details)

    def pause(
        self,
        *,
        initiator: Initiator,
        now: datetime,
        note: str = "",
        until: datetime | None = None,
        token: int | None = None,
    ) -> None:
        if until is not None and until <= now:
            raise ValidationError({"until": "The pause must end in the future."})
        with transaction.atomic():
            self._take(token)
            self.status, self.paused_at = self.Status.PAUSED, now
            self.pause_note, self.paused_until = note, until
            self.occurrences.pending().automatic().update(due_at=None)
            self._save_moved()
            Activity.objects.record("pause", self, initiator=initiator, now=now, message=note)

    def resume(
        self, *, initiator: Initiator, now: datetime, discard: bool = False, token: int | None = None
    ) -> None:
        """Pending occurrences settle by catch-up window and overlap policy, unless they are discarded."""
        with transaction.atomic():
            self._take(token)
            if self.status != self.Status.PAUSED:
                raise Refused(f"“{self}” is not paused.")
            if discard:
                self._generate_until(now)
                self.skipped_count += (
                    self.occurrences.pending()
                    .automatic()
                    .settle(Occurrence.Status.SKIPPED, reason="discarded", now=now)
                )
            self.status, self.paused_at, self.pause_note, self.paused_until = (
                self.Status.RUNNING,
                None,
                "",
                None,
            )
            self.occurrences.pending().filter(due_at=None).update(due_at=F("nominal_at"))
            self._save_moved()
            Activity.objects.record("resume", self, initiator=initiator, now=now)

    def close(self, *, initiator: Initiator, now: datetime, token: int | None = None) -> None:
        """For good: what is pending is cancelled, running executions go on, the history stays."""
        with transaction.atomic():
            self._take(token)
            if not self.spec_error:
                self._generate_until(now)
            self.occurrences.pending().settle(Occurrence.Status.CANCELLED, reason="closed", now=now)
            self.status, self.next_run_at, self.paused_until = self.Status.CLOSED, None, None
            self._save_moved()
            Activity.objects.record("close", self, initiator=initiator, now=now)

    def generate(self, now: datetime) -> list[Occurrence]:
        """The unsaved occurrences of the times up to `now`; moves this object's cursor past them."""
        assert self.processed_until is not None
        spec = self.compiled_spec
        times = spec.times(self.processed_until, now, limit=TIMES_PER_PASS)
        self.processed_until = times[-1] if len(times) == TIMES_PER_PASS else max(now, self.processed_until)
        self.next_run_at = spec.next(self.processed_until)
        return [Occurrence.automatic(self, at, now=now) for at in times]

    def mark_broken(self, error: Exception) -> None:
        """Takes a schedule whose spec cannot be read out of the clockwork, until it is edited."""
        self.spec_error, self.next_run_at = str(error)[:500], None

    def check_definition(
        self, steps: Sequence[Mapping[str, Any]], *, now: datetime, spec_changed: bool
    ) -> None:
        """Raises ValidationError by field: the schedule's own fields, `spec` and `steps`."""
        errors: dict[str, Any] = {}
        try:
            self.full_clean()
        except ValidationError as error:
            errors |= error.message_dict
        try:
            spec = self.compiled_spec
            if spec_changed:
                spec.check(now)
            self.spec = spec.as_json()
        except SpecError as error:
            errors["spec"] = [str(error)]
        step_errors = _check_steps(steps)
        if step_errors:
            errors["steps"] = step_errors
        if errors:
            raise ValidationError(errors)

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")

    def _take(self, token: int | None) -> None:
        """Locks the row and reads it anew, so that what follows is decided on the newest state."""
        fresh = Schedule.objects.lock().get(pk=self.pk)
        if token is not None and token != fresh.token:
            raise Conflict(fresh.token)
        if fresh.status == self.Status.CLOSED:
            raise Refused(f"“{fresh}” is closed: it cannot be changed any more.")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _save_moved(self) -> None:
        self.token += 1
        self.save()
        wake("jim_schedules")

    def _restart_cursor(self, now: datetime) -> None:
        self.processed_until, self.next_run_at, self.spec_error = now, self.compiled_spec.next(now), ""

    def _generate_until(self, now: datetime) -> None:
        """What the spec as it was still owes, so that an edit loses no time."""
        if self.processed_until is None or self.spec_error:
            return
        for _ in range(EDIT_PASSES):
            try:
                occurrences = self.generate(now)
            except SpecError as error:
                # Nobody had noticed yet; a spec that cannot be read owes nothing.
                self.mark_broken(error)
                return
            Occurrence.objects.bulk_create(occurrences, ignore_conflicts=True)
            if self.processed_until >= now:
                return
        raise Refused("This schedule is catching up with missed times. Try again in a moment.")

    def _replace_steps(self, steps: Iterable[Mapping[str, Any]]) -> None:
        self.steps.all().delete()
        Step.objects.bulk_create([Step.from_json(self, step) for step in steps])


class Step(models.Model):
    """One line of a plan; steps with the same index run side by side."""

    class OnCrash(models.TextChoices):
        RETRY = "retry", "Run it again"
        FAIL = "fail", "Fail: it must not run twice"

    FIELDS = (
        "index",
        "name",
        "step_type",
        "config",
        "continue_on_failure",
        "timeout_seconds",
        "max_retries",
        "retry_seconds",
        "on_crash",
        "pool",
    )

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="steps", db_index=False)
    index = models.PositiveIntegerField(default=0, validators=[MaxValueValidator(1000)])
    name = models.CharField(max_length=200)
    step_type = models.CharField(max_length=40)
    config = models.JSONField(default=dict, blank=True)
    continue_on_failure = models.BooleanField(default=False)
    timeout_seconds = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(604_800)]
    )
    max_retries = models.PositiveIntegerField(default=3, validators=[MaxValueValidator(100)])
    retry_seconds = models.PositiveIntegerField(default=10, validators=[MaxValueValidator(86_400)])
    on_crash = models.CharField(max_length=8, choices=OnCrash.choices, default=OnCrash.RETRY)
    pool = models.CharField(max_length=40, default="default")

    class Meta:
        ordering = ["index", "id"]
        constraints = [models.UniqueConstraint(fields=["schedule", "name"], name="step_name_once")]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_json(cls, schedule: Schedule, data: Mapping[str, Any]) -> Step:
        step = cls(schedule=schedule, **data)
        step.name = step.name.strip()
        step.config = registry.step_types[step.step_type].clean(step.config)
        return step

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FIELDS}

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", self.name.strip())
        check_plain_text(self.name, "name")
        check_plain_text(self.pool, "pool")
        kind = registry.step_types.get(self.step_type)
        if kind is None:
            known = ", ".join(sorted(registry.step_types))
            raise ValidationError(
                {"step_type": f"There is no step type “{self.step_type}”; there are: {known}."}
            )
        try:
            self.config = kind.clean(self.config)
        except registry.ConfigError as error:
            raise ValidationError(
                {"config": [f"{field}: {text}" for field, text in error.errors.items()]}
            ) from error


MAX_STEPS = 500


def _check_steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every complaint about a list of steps, each beginning with the step it is about."""
    if not steps:
        return ["A schedule needs at least one step."]
    if len(steps) > MAX_STEPS:
        return [f"{len(steps)} steps are too many: at most {MAX_STEPS}."]
    complaints: list[str] = []
    names: set[str] = set()
    for number, data in enumerate(steps, 1):
        unknown = set(data) - set(Step.FIELDS)
        if unknown:
            complaints.append(f"Step {number}: unknown field {', '.join(sorted(unknown))}.")
            continue
        step = Step(**data)
        label = f"Step {number} ({step.name})" if step.name else f"Step {number}"
        try:
            step.clean_fields(exclude=["schedule"])
            step.clean()
        except ValidationError as error:
            complaints += [
                f"{label}: {field}: {text}" for field, texts in error.message_dict.items() for text in texts
            ]
        if step.name.casefold() in names:
            complaints.append(f"{label}: name: another step has this name already.")
        names.add(step.name.casefold())
    return complaints


def check_plain_text(text: str, field: str) -> None:
    """Names are shown, sorted and compared: no control, bidirectional or zero-width characters."""
    if not text:
        raise ValidationError({field: "This must not be blank."})
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character != "\u200d":
            raise ValidationError({field: f"The character U+{ord(character):04X} is not allowed here."})


class OccurrenceQuerySet(models.QuerySet["Occurrence"]):
    def pending(self) -> OccurrenceQuerySet:
        return self.filter(status=Occurrence.Status.PENDING)

    def automatic(self) -> OccurrenceQuerySet:
        return self.filter(source=Occurrence.Source.AUTO)

    def due(self, now: datetime) -> OccurrenceQuerySet:
        """What the invoker may settle now: automatic ones of a paused schedule are never due."""
        return self.pending().filter(due_at__lte=now)

    def settle(self, status: str, *, reason: str, now: datetime) -> int:
        return self.filter(status=Occurrence.Status.PENDING).update(
            status=status, reason=reason, settled_at=now
        )

    def prune(self, *, before: datetime, limit: int) -> int:
        """Settled ones whose execution, if there was one, is gone already."""
        old = self.filter(settled_at__lt=before, execution=None).exclude(status=Occurrence.Status.PENDING)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]


class Occurrence(models.Model):
    """One nominal time, or one request, and its fate."""

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

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="occurrences", db_index=False)
    source = models.CharField(max_length=8, choices=Source.choices)
    key = models.CharField(max_length=200)
    nominal_at = models.DateTimeField()
    due_at = models.DateTimeField(null=True, help_text="Empty while it waits for its paused schedule.")
    overlap = models.CharField(max_length=16, choices=Schedule.Overlap.choices, blank=True)
    status = models.CharField(max_length=9, choices=Status.choices, default=Status.PENDING)
    reason = models.CharField(max_length=200, blank=True)
    blocked_by = models.BigIntegerField(null=True, blank=True, help_text="The execution that was in the way.")
    initiator_type = models.CharField(max_length=16)
    initiator_id = models.CharField(max_length=64, blank=True)
    initiator_name = models.CharField(max_length=255)
    created_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True, blank=True)

    objects = OccurrenceQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "key"], name="occurrence_once")]
        indexes = [
            models.Index(fields=["due_at"], name="occurrence_due", condition=Q(status="pending")),
            models.Index(
                fields=["schedule", "due_at"], name="occurrence_pending", condition=Q(status="pending")
            ),
            models.Index(fields=["schedule", "-nominal_at"], name="occurrence_of_schedule"),
            models.Index(
                fields=["settled_at"], name="occurrence_settled", condition=Q(settled_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.key} ({self.get_status_display()})"

    @classmethod
    def automatic(cls, schedule: Schedule, at: datetime, *, now: datetime) -> Occurrence:
        key = f"auto/{at:%Y-%m-%dT%H:%M:%SZ}"
        by = Initiator.schedule(schedule)
        occurrence = cls._new(schedule, cls.Source.AUTO, key, at, initiator=by, now=now)
        if schedule.status == Schedule.Status.PAUSED:
            occurrence.due_at = None
        return occurrence

    @classmethod
    def manual(
        cls, schedule: Schedule, *, initiator: Initiator, now: datetime, key: str = "", overlap: str = ""
    ) -> Occurrence:
        occurrence = cls._new(
            schedule, cls.Source.MANUAL, f"manual/{key or uuid.uuid4()}", now, initiator=initiator, now=now
        )
        occurrence.overlap = overlap
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
            due_at=at,
            initiator_type=initiator.type,
            initiator_id=initiator.id,
            initiator_name=initiator.name,
            created_at=now,
        )

    @property
    def initiator(self) -> Initiator:
        return Initiator(self.initiator_type, self.initiator_id, self.initiator_name)

    @property
    def lag(self) -> timedelta | None:
        return self.settled_at - self.nominal_at if self.settled_at else None
