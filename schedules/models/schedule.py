from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import Lower

from activities.models import Activity, Initiator
from activities.wake import wake
from schedules.spec import Spec
from schedules.wording import SpecError

from .occurrence import Occurrence, Overlap
from .step import Step, check_plain_text, check_steps

TIMES_PER_PASS = 1_000
EDIT_PASSES = 10
BUFFER_LIMIT = 1_000
LONGEST_NOTE = 1_000


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
        schedule.restart_cursor(now)
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

    Overlap = Overlap
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
    pause_note = models.CharField(max_length=LONGEST_NOTE, blank=True, editable=False)
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

    @property
    def is_paused(self) -> bool:
        return self.status == self.Status.PAUSED

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
                self.restart_cursor(now)
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
        if len(note) > LONGEST_NOTE:
            raise ValidationError({"note": f"A note has at most {LONGEST_NOTE} characters."})
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
        step_errors = check_steps(steps)
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

    def restart_cursor(self, now: datetime) -> None:
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
