"""The times of a schedule: past, upcoming and skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models

from operations.initiator import Initiator
from schedules.overlap import MISSED, is_missed, latest_missed
from schedules.spec import Spec, SpecError
from schedules.spec.timeline import Effort
from text.words import exact

from .definition import Definition
from .occurrence import Automatic, Occurrence, OccurrenceQuerySet, named_time
from .refusals import Refused

if TYPE_CHECKING:
    from schedules.spec.explanation import Upcoming

TIMES_PER_PASS = 1_000
EDIT_PASSES = 10
MOST_SKIPS = 100


class Timetable(Definition):
    class Status(models.TextChoices):
        ACTIVE = "active"
        PAUSED = "paused"
        CLOSED = "closed"

    # The fields that generating times changes.
    GENERATED = (
        "processed_until",
        "next_run_at",
        "spec_error",
        "skips",
        "skipped_count",
        "skipped_reasons",
        "missed_count",
        "dropped_count",
    )
    # The fields that generating times reads.
    GENERATING = ("name", "original_name", "spec", "calendars", "status", "catch_up_seconds", *GENERATED)

    status = models.CharField(max_length=8, choices=Status.choices, default=Status.ACTIVE, editable=False)
    processed_until = models.DateTimeField(null=True, editable=False)
    next_run_at = models.DateTimeField(null=True, editable=False)
    spec_error = models.CharField(max_length=500, blank=True, editable=False)
    original_name = models.CharField(
        max_length=200,
        blank=True,
        editable=False,
        help_text="The name of a renamed schedule before the first rename. The jitter depends on this name.",
    )
    # The times to skip, and who asked to skip them: {"2026-11-17T02:00:00Z": "ada"}
    skips = models.JSONField(default=dict, blank=True, editable=False)
    skipped_count = models.PositiveBigIntegerField(default=0, editable=False)
    skipped_reasons = models.JSONField(default=dict, blank=True, editable=False)
    missed_count = models.PositiveBigIntegerField(default=0, editable=False)
    dropped_count = models.PositiveBigIntegerField(default=0, editable=False)

    if TYPE_CHECKING:
        # The reverse of the occurrence's foreign key, which the abstract model does not have.
        occurrences: OccurrenceQuerySet

    class Meta:
        abstract = True

    @property
    def jitter_seed(self) -> str:
        """Return the seed of the jitter: the original name, so that a rename does not change the jitter."""
        return self.original_name or self.name

    @property
    def is_paused(self) -> bool:
        return self.status == self.Status.PAUSED

    @property
    def next_left_out_by(self) -> str:
        """Return who asked to skip the next run, or an empty string if it is not to be skipped."""
        return str(self.skips.get(named_time(self.next_run_at), "")) if self.next_run_at else ""

    def is_overdue(self, now: datetime) -> bool:
        grace = timedelta(seconds=settings.JIM_OVERDUE_SECONDS)
        return self.next_run_at is not None and self.next_run_at < now - grace

    def restart_cursor(self, now: datetime) -> None:
        """Move the cursor (`processed_until`) to `now`, and set `next_run_at` to the next time after it.

        A cursor that is later than `now` stays: `now` may have been read before waiting for a lock.
        """
        cursor = max(now, self.processed_until or now)
        self.processed_until, self.next_run_at, self.spec_error = cursor, self.compiled_spec.next(cursor), ""

    def _restart_or_refuse(self, now: datetime, *, spec_changed: bool) -> str:
        """Restart the search for times after an edit; return a note about lost times, or an empty string.

        A new spec applies from `now` on; raise ValidationError if the new spec is invalid. If the spec did
        not change but is valid again, the schedule continues where it stopped. If such a spec is still
        invalid, the schedule stays broken.
        """
        lost = self.times_lost() if spec_changed else ""
        since = self.processed_until
        try:
            self.restart_cursor(now if spec_changed or since is None else since)
        except SpecError as error:
            if spec_changed:
                raise ValidationError({"spec": [str(error)]}) from error
            self.mark_broken(error)
        return lost

    def times_lost(self) -> str:
        """Return a note about times that an invalid spec left unrecorded until now, or an empty string."""
        if not self.spec_error or self.processed_until is None:
            return ""
        since = exact(self.processed_until)
        return (
            f"Scheduled times between {since} and this edit are not recorded: the spec was invalid "
            f"({self.spec_error})"
        )

    def mark_broken(self, error: Exception) -> None:
        """Record the error of the spec, and do not generate any times until the spec is edited."""
        self.spec_error, self.next_run_at = str(error)[:500], None

    def generate_until(self, now: datetime) -> None:
        """Store the occurrences up to `now`, before an edit; raise Refused if there are too many of them."""
        if self.processed_until is None or self.spec_error:
            return
        for _ in range(EDIT_PASSES):
            try:
                occurrences = self.generate(now)
            except SpecError as error:
                # The error was not recorded yet; an invalid spec has no times.
                self.mark_broken(error)
                return
            if occurrences:
                Occurrence.objects.add(occurrences, now=now)
                self.drop_oldest(now)
            if self.processed_until >= now or self.spec_error:
                return
        raise Refused(f"“{self}” is catching up with times that have passed. Try again in a moment.")

    def generate(self, now: datetime) -> list[Automatic]:
        """Return the next occurrences up to `now`, for the caller to store, and move the cursor past them.

        One call returns at most `TIMES_PER_PASS` occurrences.
        """
        assert self.processed_until is not None
        spec = self.compiled_spec
        times: list[datetime] = []
        try:
            times.extend(spec.each(self.processed_until, now, limit=TIMES_PER_PASS))
            is_full = len(times) == TIMES_PER_PASS
            self.processed_until = times[-1] if is_full else max(now, self.processed_until)
            self.next_run_at = spec.next(self.processed_until)
        except SpecError as error:
            self.mark_broken(error)  # the times found so far stay valid
            self.processed_until = max([self.processed_until, *times[-1:]])
        occurrences = self._occurrences(times, spec, now)
        if self.skips:
            passed = named_time(self.processed_until)
            self.skips = {at: by for at, by in self.skips.items() if at > passed}
        return occurrences

    def _occurrences(self, times: Sequence[datetime], spec: Spec, now: datetime) -> list[Automatic]:
        pk, pk_text, name, is_paused = self.pk, str(self.pk), self.name, self.is_paused
        seed = self.jitter_seed
        # The catch-up window applies to times that pass during a pause only when the schedule is resumed.
        missed_before = None if is_paused else latest_missed(self.catch_up_seconds, now)
        occurrences = []
        for at in times:
            planned_at, key = spec.due_at(at, seed), named_time(at)
            due_at = None if is_paused else planned_at
            occurrence = Automatic(pk, f"auto/{key}", at, planned_at, due_at, pk_text, name)
            if self.skips and (by := self.skips.pop(key, "")):
                self._count_skips("on request", 1)
                occurrence = occurrence.settled(Occurrence.Status.SKIPPED, _asked_by(by), now)
            elif is_missed(planned_at, missed_before):
                self.missed_count += 1
                occurrence = occurrence.settled(Occurrence.Status.MISSED, MISSED, now)
            occurrences.append(occurrence)
        return occurrences

    def drop_oldest(self, now: datetime) -> None:
        """Drop the oldest automatic occurrences if more are pending than the buffer can hold."""
        pending = self.occurrences.buffered()
        too_many = pending.count() - settings.JIM_BUFFER_LIMIT
        if too_many > 0:
            oldest = pending.automatic().order_by("nominal_at").values_list("pk", flat=True)[:too_many]
            dropped = self.occurrences.filter(pk__in=list(oldest))
            self.dropped_count += dropped.settle("dropped", reason="buffer full", now=now)

    def upcoming(self, count: int, *, now: datetime, effort: Effort | None = None) -> list[Upcoming]:
        """Return up to `count` upcoming times, without those that are marked to be skipped.

        `effort` limits the search: times that the search does not reach are left out.
        """
        if self.status == self.Status.CLOSED or self.remaining == 0:
            return []
        if self.spec_error:
            raise self._broken(self.spec_error)
        count = count if self.remaining is None else min(count, self.remaining)
        after = max(self.processed_until or now, now)
        with self._readable_spec() as spec:
            rows = spec.upcoming(after, count + len(self.skips), self.jitter_seed, effort or Effort())
        return [row for row in rows if named_time(row.at) not in self.skips][:count]

    def next_times(self, count: int, *, now: datetime) -> list[datetime]:
        return [row.at for row in self.upcoming(count, now=now)]

    def _skip_planned(self, by: Initiator, now: datetime) -> datetime | None:
        """Skip the next run whose nominal time has passed, but whose start is still delayed by jitter.

        Return the nominal time of the skipped run, or None if jitter delays no run.
        """
        planned = (
            self.occurrences.pending().automatic().filter(planned_at__gt=now).order_by("planned_at").first()
        )
        if planned is None:
            return None
        skipped = self.occurrences.filter(pk=planned.pk).settle("skipped", reason=_asked_by(by.name), now=now)
        self._count_skips("on request", skipped)
        return planned.nominal_at

    def _skip_coming(self, by: Initiator, now: datetime) -> datetime:
        with self._readable_spec() as spec:
            at = spec.next(max(self.processed_until or now, now))
            while at is not None and named_time(at) in self.skips:
                at = spec.next(at)
        if at is None:
            raise Refused(f"“{self}” has no upcoming run to skip.")
        if len(self.skips) >= MOST_SKIPS:
            raise Refused(
                f"{MOST_SKIPS} upcoming runs of “{self}” are already marked to be skipped, which is the "
                "maximum: pause the schedule instead."
            )
        self.skips = self.skips | {named_time(at): by.name}
        return at

    def _count_skips(self, reason: str, count: int) -> None:
        if count:
            self.skipped_count += count
            self.skipped_reasons = dict(Counter(self.skipped_reasons) + Counter({reason: count}))

    @contextmanager
    def _readable_spec(self) -> Iterator[Spec]:
        """Yield the compiled spec; turn any SpecError, including one raised in the block, into Refused."""
        try:
            yield self.compiled_spec
        except SpecError as error:
            raise self._broken(error) from error

    def _broken(self, error: object) -> Refused:
        return Refused(f"The spec of “{self}” is invalid: {error}")


def _asked_by(name: str) -> str:
    return f"on request from {name}"[:200]
