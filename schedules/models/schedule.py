"""Schedules and their operations: edit, pause, resume, skip, close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Lower
from django.urls import reverse

from activities.models import Activity
from database.wake import wake
from operations.field_errors import FieldError, field_errors, invalid
from operations.initiator import Initiator
from schedules import permissions, registry
from schedules.overlap import MISSED
from schedules.spec import SpecError
from text.clean import clean_text
from text.words import exact

from .definition import MOST_OUTCOMES
from .labels import Tag, clean_tags
from .occurrence import Occurrence, named_time, notice_missed
from .refusals import Conflict, Refused
from .schedule_queryset import ScheduleQuerySet
from .shared_calendar import SharedCalendar
from .step import Step, check_steps, made_of, unheard_events
from .template import TaskTemplate, as_they_run, same_json
from .timetable import Timetable

if TYPE_CHECKING:
    from schedules.description import Description
    from schedules.revisions import Revisions
    from schedules.why import Explanation

LONGEST_NOTE = 1_000
SKIP_REASONS = ("overlap", "superseded", "no runs left")


class Schedule(Timetable):
    pause_note = models.CharField(max_length=LONGEST_NOTE, blank=True, editable=False)
    paused_at = models.DateTimeField(null=True, editable=False)
    paused_until = models.DateTimeField(null=True, editable=False)
    is_paused_by_failures = models.BooleanField(default=False, editable=False)
    is_paused_together = models.BooleanField(default=False, editable=False)
    paused_tags = models.JSONField(
        default=list,
        blank=True,
        editable=False,
        help_text="If the schedule was paused together with others: the tags that selected these schedules.",
    )
    token = models.PositiveIntegerField(default=1, editable=False)

    shared_calendars = models.ManyToManyField(SharedCalendar, related_name="schedules", editable=False)
    overdue_noticed_at = models.DateTimeField(
        null=True, editable=False, help_text="The time of the run that was last reported as overdue."
    )

    started_count = models.PositiveBigIntegerField(default=0, editable=False)
    failed_count = models.PositiveBigIntegerField(default=0, editable=False)
    failures_in_a_row = models.PositiveIntegerField(default=0, editable=False)
    # One letter for each of the last executions, newest first: c(ompleted) or f(ailed).
    recent_outcomes = models.CharField(max_length=MOST_OUTCOMES, blank=True, editable=False)
    last_run_at = models.DateTimeField(null=True, editable=False)
    last_outcome = models.CharField(max_length=16, blank=True, editable=False)
    last_result = models.JSONField(null=True, editable=False)
    last_failure = models.TextField(blank=True, editable=False)

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
                violation_error_message="A schedule with this name already exists: choose another name.",
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

    def get_absolute_url(self) -> str:
        return reverse("web:schedule", args=[self.pk])

    @property
    def pause_in_words(self) -> str:
        until = f" until {exact(self.paused_until, self.zone)}" if self.paused_until else ""
        return f"paused{until}{f' ({self.pause_note})' if self.pause_note else ''}"

    @property
    def success_rate(self) -> float | None:
        """Return the share of completed ones among the last completed or failed executions; None if none."""
        ended = self.recent_outcomes
        return ended.count("c") / len(ended) if ended else None

    @property
    def failures_recently(self) -> int:
        """Return the number of failures among the last `failures_among` executions."""
        return self.recent_outcomes[: self.failures_among].count("f")

    def definition(self) -> dict[str, Any]:
        """Return the definition, including the steps, as values for JSON."""
        steps = [step.written() for step in self.steps.all()] if self.pk else []
        return {name: getattr(self, name) for name in self.DEFINITION} | {"steps": steps}

    def edit(
        self,
        *,
        token: int,
        initiator: Initiator,
        now: datetime,
        changes: Mapping[str, Any],
        steps: Sequence[Mapping[str, Any]] | None = None,
        may: permissions.May = permissions.anything,
    ) -> bool:
        """Change the definition; return False, and save nothing, if nothing differs.

        Existing occurrences and executions are kept. `may` checks the permissions that new steps need. Raise
        Conflict if `token` is outdated.
        """
        if unknown := set(changes) - set(self.EDITABLE):
            raise ValidationError(dict.fromkeys(sorted(unknown), "This field cannot be edited."))
        with transaction.atomic():
            SharedCalendar.objects.lock_named_in(changes.get("spec"))
            templates = TaskTemplate.objects.lock_needed_by(steps, schedule=self)
            self._take(None)
            if steps is not None:
                # This check comes first, because the other checks reveal which secrets exist, and not all
                # users may know that.
                stored = [step.as_json() for step in self.steps.all()]
                permissions.check_writer(as_they_run(steps, templates), may, before=stored)
            before, wanted = self._editable(), self._with(changes)
            checked = self._steps_as_they_run(before["steps"]) if steps is None else steps
            wanted.check_definition(checked, templates=templates, now=now, stored_spec=self.spec)
            after = wanted._own() | {"steps": self._written(steps, templates)}
            if same_json(after, before) and not self.spec_error:
                return False
            if token != self.token:
                raise Conflict(self.token)
            lost = self._become(wanted, now=now)
            if steps is not None:
                self._replace_steps(steps, templates)
            self._index()
            kept = self.occurrences.asked_for() if self.is_paused else self.occurrences.all()
            kept.release()  # a new policy may decide otherwise
            self._save_moved()
            if self.topics != before["topics"]:
                self._follow_topics(now)
            details = {"before": before, "after": self._editable()}
            Activity.objects.record("edit", self, initiator=initiator, now=now, message=lost, details=details)
        return True

    def _with(self, changes: Mapping[str, Any]) -> Schedule:
        """Return an unsaved copy of this schedule to which the changes have been applied."""
        wanted = copy(self)
        for name, value in changes.items():
            setattr(wanted, name, value)
        return wanted

    def _written(
        self, steps: Sequence[Mapping[str, Any]] | None, templates: Mapping[str, TaskTemplate]
    ) -> list[dict[str, Any]]:
        """Return `steps`, or the stored steps if `steps` is None, without the values of their templates."""
        made = self.steps.all() if steps is None else made_of(steps, templates)
        return [step.written() for step in made]

    def _become(self, wanted: Schedule, *, now: datetime) -> str:
        """Copy the checked definition of `wanted`; return a note about lost times, or an empty string."""
        names = (*self.EDITABLE, "calendars")
        changes = {name: each for name in names if (each := getattr(wanted, name)) != getattr(self, name)}
        spec_changed = "spec" in changes
        if spec_changed:
            self.generate_until(now)
        if "name" in changes:
            self.original_name = self.original_name or self.name
        for name, value in changes.items():
            setattr(self, name, value)
        if not spec_changed and not self.spec_error:
            return ""
        return self._restart_or_refuse(now, spec_changed=spec_changed)

    def pause(
        self,
        *,
        initiator: Initiator,
        now: datetime,
        note: str = "",
        until: datetime | None = None,
        by_failures: bool = False,
        together: bool = False,
        tags: Sequence[str] = (),
        token: int | None = None,
    ) -> None:
        """Pause the schedule.

        `together` means that several schedules are being paused, selected by `tags` if any. In this case,
        raise Refused if the schedule is already paused.
        """
        if until is not None and until <= now:
            raise ValidationError({"until": "The pause must end in the future."})
        with transaction.atomic():
            self._take(token)
            if together and self.is_paused:
                raise Refused(f"“{self}” is already {self.pause_in_words}. Nothing was changed.")
            self._set_paused(
                now, note=note, until=until, by_failures=by_failures, together=together, tags=tags
            )
            self.occurrences.suspend()
            self._save_moved()
            details = {"until": named_time(until)} if until else None
            Activity.objects.record(
                "pause", self, initiator=initiator, now=now, message=note, details=details
            )

    def resume(
        self,
        *,
        initiator: Initiator,
        now: datetime,
        discard: bool = False,
        together: bool = False,
        tags: Sequence[str] = (),
        token: int | None = None,
    ) -> None:
        """Resume the schedule; with `discard`, record the times that passed during the pause as skipped.

        Without `discard`, the catch-up window and the overlap policy decide what happens to these times. With
        `together`, raise Refused unless this schedule and others were paused together with the same `tags`.
        """
        with transaction.atomic():
            self._take(token)
            if self.status != self.Status.PAUSED:
                raise Refused(f"“{self}” is not paused.")
            if together and not (self.is_paused_together and self.paused_tags == clean_tags(list(tags))):
                raise Refused(f"“{self}” was not paused together with these schedules. Nothing was changed.")
            self.generate_until(now)
            if discard:
                waiting = self.occurrences.pending().unasked_for()
                self._count_skips("discarded", waiting.settle("skipped", reason="discarded", now=now))
            else:
                self._miss_or_keep(now)
            self.status, self.paused_at, self.paused_until = self.Status.ACTIVE, None, None
            self.pause_note, self.is_paused_by_failures = "", False
            self.is_paused_together, self.paused_tags = False, []
            self.occurrences.release()
            self._save_moved()
            if self.topics:
                self._follow_topics(now)
            Activity.objects.record(
                "resume", self, initiator=initiator, now=now, details={"discard": discard}
            )

    def count_settled(self, status: str, count: int, *, source: str, reason: str, now: datetime) -> None:
        if status == Occurrence.Status.STARTED:
            self.started_count += count
            self.last_run_at = now
            if self.remaining is not None and source == Occurrence.Source.AUTO:
                self.remaining = max(0, self.remaining - count)
        elif status == Occurrence.Status.MISSED:
            self.missed_count += count
        else:
            self._count_skips(reason if reason in SKIP_REASONS else "impossible", count)

    def count_outcome(self, status: str, *, result: Any, error: str) -> None:
        """Record the outcome of an execution; cancelled executions do not change the counters."""
        self.last_outcome = status
        if status == "completed":
            self.failures_in_a_row, self.last_result, self.last_failure = 0, result, ""
        elif status == "failed":
            self.failed_count += 1
            self.failures_in_a_row += 1
            self.last_failure = error
        if status in ("completed", "failed"):
            self.recent_outcomes = (status[0] + self.recent_outcomes)[:MOST_OUTCOMES]

    @property
    def is_failing(self) -> bool:
        return self.pause_on_failure and self.failures_recently >= self.failures_to_pause

    @property
    def failing_note(self) -> str:
        among = f"{self.failures_recently} of the last {min(self.failures_among, len(self.recent_outcomes))}"
        counted = "The last execution" if self.failures_among == 1 else f"{among} executions"
        return f"Paused automatically. {counted} failed: {self.last_failure}"[:LONGEST_NOTE]

    def pause_over_failures(self, note: str, *, now: datetime) -> bool:
        """Pause the schedule because of too many failures; return False if the schedule is not active."""
        if self.status != self.Status.ACTIVE:
            return False
        self.pause(initiator=Initiator.system("pause on failure"), now=now, note=note, by_failures=True)
        return True

    def _miss_or_keep(self, now: datetime) -> None:
        """After a pause, record the waiting times that are now too late as missed.

        The other times can then wait without a limit.
        """
        fresh = self.occurrences.pending().automatic().filter(kept_at=None, planned_at__lte=now)
        late = fresh.missed(self.catch_up_seconds, now=now)
        missed = list(late.values_list("schedule_id", "nominal_at"))
        self.missed_count += late.settle("missed", reason=MISSED, now=now)
        notice_missed(missed, now=now)
        fresh.update(kept_at=now)

    def skip_next(self, *, initiator: Initiator, now: datetime, token: int | None = None) -> datetime:
        """Skip the next scheduled run and return its nominal time; a second call skips the run after that."""
        with transaction.atomic():
            self._take(token)
            at = self._skip_planned(initiator, now) or self._skip_coming(initiator, now)
            self._save_moved()
            details = {"at": named_time(at)}
            Activity.objects.record("skip", self, initiator=initiator, now=now, details=details)
        return at

    def unskip(self, at: datetime, *, initiator: Initiator, now: datetime, token: int | None = None) -> None:
        """Undo the skip of the time `at`; raise Refused if this time is not marked to be skipped."""
        with transaction.atomic():
            self._take(token)
            if named_time(at) not in self.skips:
                raise Refused(
                    f"The run of “{self}” at {exact(at, self.zone)} is not marked to be skipped, or its time "
                    "has already passed."
                )
            self.skips = {time: by for time, by in self.skips.items() if time != named_time(at)}
            self._save_moved()
            Activity.objects.record(
                "unskip", self, initiator=initiator, now=now, details={"at": named_time(at)}
            )

    def close(self, *, initiator: Initiator, now: datetime, token: int | None = None) -> None:
        """Close the schedule permanently: cancel what is pending, but keep running executions and history."""
        with transaction.atomic():
            self._take(token)
            if not self.spec_error:
                self.generate_until(now)
            self.occurrences.pending().settle("cancelled", reason="closed", now=now)
            for backfill in self.backfills.open():
                backfill.cancel(initiator=initiator, now=now, reason="The schedule was closed.")
            self.status, self.next_run_at, self.paused_until = self.Status.CLOSED, None, None
            self.is_paused_by_failures = False
            self._save_moved()
            if self.topics:
                self._follow_topics(now)
            Activity.objects.record("close", self, initiator=initiator, now=now)

    def check_definition(
        self,
        steps: Sequence[Mapping[str, Any]],
        *,
        templates: Mapping[str, TaskTemplate],
        now: datetime,
        stored_spec: object = None,
    ) -> None:
        """Check the definition and its steps; raise ValidationError with all errors, each with its path.

        A spec that equals `stored_spec` may have no future times, or times that are too close together.
        """
        errors: list[FieldError] = []
        try:
            self.full_clean()
        except ValidationError as error:
            errors += field_errors(error)
        try:
            self.calendars = SharedCalendar.objects.needed_by(self.spec)
            spec = self.compiled_spec
            if spec.as_json() != stored_spec:
                spec.check(now, minimum_seconds=settings.JIM_MINIMUM_INTERVAL_SECONDS)
            self.spec = spec.as_json()
        except SpecError as error:
            errors.append(FieldError(("spec", *error.path), error.message))
        step_errors = check_steps(steps, templates)
        if not step_errors and not self.topics:
            step_errors = unheard_events(steps, templates)
        errors += [error.inside("steps") for error in step_errors]
        if self.topics and not errors:
            wrong = self.wrong_with_events(as_they_run(steps, templates))
            errors += [FieldError(("topics",), words) for words in wrong]
        if errors:
            raise invalid(errors)

    def wrong_with_events(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return a list of what is wrong with the topics of this schedule; `steps` are its complete steps."""
        return [words for source in registry.event_sources for words in source.complaints(self, steps)]

    def _follow_topics(self, now: datetime) -> None:
        for source in registry.event_sources:
            source.follow(self, now=now)

    def _take(self, token: int | None) -> None:
        """Lock and reload this schedule.

        Raise Conflict if `token` is outdated, or Refused if the schedule is closed.
        """
        fresh = Schedule.objects.lock().get(pk=self.pk)
        if token is not None and token != fresh.token:
            raise Conflict(fresh.token)
        if fresh.status == self.Status.CLOSED:
            raise Refused(f"“{fresh}” is closed: it can no longer be changed.")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _own(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.EDITABLE}

    def _editable(self) -> dict[str, Any]:
        return self._own() | {"steps": [step.written() for step in self.steps.all()]}

    def _set_paused(
        self,
        now: datetime,
        *,
        note: str = "",
        until: datetime | None = None,
        by_failures: bool = False,
        together: bool = False,
        tags: Sequence[str] = (),
    ) -> None:
        if len(note) > LONGEST_NOTE:
            raise ValidationError({"note": f"A note can be at most {LONGEST_NOTE:,} characters long."})
        self.status, self.paused_at = self.Status.PAUSED, now
        self.pause_note, self.paused_until = clean_text(note), until
        self.is_paused_by_failures = by_failures
        self.is_paused_together, self.paused_tags = together, clean_tags(list(tags))

    def _save_moved(self) -> None:
        self.token += 1
        self.save()
        wake("jim_schedules")

    def _index(self) -> None:
        """Update the rows by which searches find this schedule: its shared calendars and tags."""
        self.shared_calendars.set(SharedCalendar.objects.filter(name__in=self.calendars))
        known = set(self.tag_rows.values_list("name", flat=True))
        self.tag_rows.exclude(name__in=self.tags).delete()
        Tag.objects.bulk_create(Tag(schedule=self, name=tag) for tag in self.tags if tag not in known)

    def _replace_steps(
        self, steps: Iterable[Mapping[str, Any]], templates: Mapping[str, TaskTemplate]
    ) -> None:
        self.steps.all().delete()
        Step.objects.bulk_create([Step.from_json(self, step, templates) for step in steps])

    def _steps_as_they_run(self, written: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the `written` steps or, if any of them uses a template, the complete stored steps."""
        is_templated = any("template" in step for step in written)
        return [step.as_json() for step in self.steps.all()] if is_templated else written

    def why(self, at: datetime, *, now: datetime) -> Explanation:
        """Explain why the schedule did or did not run at a time; naive times are in the schedule's zone."""
        from schedules.why import why

        return why(self, at, now=now)

    def revisions(self) -> Revisions:
        """Return all versions of the definition, newest first."""
        from schedules.revisions import Revisions

        return Revisions(self)

    def describe(self, *, now: datetime) -> Description:
        from schedules.description import describe

        return describe(self, now=now)
