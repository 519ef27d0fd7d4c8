"""Shared calendars: named exclusions that many schedules use."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator
from django.db import IntegrityError, models, transaction
from django.db.models.functions import Lower
from django.urls import reverse

from activities.models import Activity
from database.statements import update_each
from database.wake import wake
from operations.initiator import Initiator
from schedules.placeholders import hint
from schedules.spec import SpecError
from schedules.spec.exclusions import (
    MOST_EXCLUSIONS,
    Dates,
    Exclusion,
    Holidays,
    Matching,
    calendar_in_words,
    calendar_items,
)
from schedules.spec.wording import shown
from text.clean import clean_lines, clean_text

from .refusals import Conflict, Refused, named
from .step import check_plain_text
from .template import same_json

if TYPE_CHECKING:
    from .schedule import Schedule

EPOCH = date(1970, 1, 1)


class SharedCalendarQuerySet(models.QuerySet["SharedCalendar"]):
    def define(
        self, name: str, excluded: object, *, initiator: Initiator, now: datetime, description: str = ""
    ) -> SharedCalendar:
        """Create a calendar; if a value is invalid, raise ValidationError and save nothing."""
        calendar = SharedCalendar(name=name, excluded=excluded, description=description)
        try:
            with transaction.atomic():
                calendar.check_definition()
                calendar.save(force_insert=True)
                details = {"name": calendar.name} | calendar.definition()
                Activity.objects.record("create", calendar, initiator=initiator, now=now, details=details)
        except IntegrityError:
            calendar.check_definition()  # raises: the name was taken in the meantime
            raise
        return calendar

    def named_in(self, spec: object) -> dict[str, Any]:
        """Return a dict from name to exclusions for the calendars that a spec names; ignore unknown names."""
        names = names_in(spec)
        return dict(self.filter(name__in=names).values_list("name", "excluded")) if names else {}

    def needed_by(self, spec: object) -> dict[str, Any]:
        """Return the same dict as `named_in`, but raise SpecError if the spec names an unknown calendar."""
        known = self.named_in(spec)
        for name in names_in(spec):
            if name not in known:
                raise SpecError("exclude", f"unknown calendar {shown(name)}; {self._advice(name)}")
        return known

    def lock_named_in(self, spec: object) -> None:
        """Lock the calendars that a spec names until the transaction ends.

        Call this before locking the schedule, because edits of calendars also lock the calendar first.
        """
        if names := names_in(spec):
            list(self.lock().filter(name__in=names).order_by("pk").values_list("pk"))

    def lock(self) -> SharedCalendarQuerySet:
        return self.select_for_update(of=("self",), no_key=True)

    def _advice(self, name: str) -> str:
        known = list(self.order_by("name").values_list("name", flat=True))
        return hint(name, known) if known else "create it first: none exist yet"


class SharedCalendar(models.Model):
    """A named list of exclusions that schedules share, such as public holidays."""

    EDITABLE = ("excluded", "description")

    name = models.CharField(max_length=100)
    description = models.TextField(blank=True, validators=[MaxLengthValidator(1_000)])
    excluded = models.JSONField(
        help_text="A list of exclusions, in the same form as in the “exclude” field of a spec."
    )
    token = models.PositiveIntegerField(default=1, editable=False)

    objects = SharedCalendarQuerySet.as_manager()

    class Meta:
        verbose_name = "calendar"
        constraints = [
            models.UniqueConstraint(
                Lower("name"),
                name="calendar_name_once",
                violation_error_message="A calendar with this name already exists: choose another name.",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("web:calendar", args=[self.pk])

    def definition(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.EDITABLE}

    def edit(self, *, token: int, changes: Mapping[str, Any], initiator: Initiator, now: datetime) -> bool:
        """Change the calendar and, in the same transaction, the times of all schedules that use it.

        Return False, and save nothing, if nothing differs.
        """
        if unknown := set(changes) - set(self.EDITABLE):
            raise ValidationError(dict.fromkeys(sorted(unknown), "This field cannot be edited."))
        with transaction.atomic():
            self._take(None)
            before = self.definition()
            for name, value in changes.items():
                setattr(self, name, value)
            self.check_definition()
            if same_json(self.definition(), before):
                return False
            if token != self.token:
                raise Conflict(self.token, what="calendar")
            details = {"before": before, "after": self.definition()}
            if self.excluded != before["excluded"]:
                self._hand_on(before["excluded"], initiator=initiator, now=now)
            self.token += 1
            self.save()
            Activity.objects.record("edit", self, initiator=initiator, now=now, details=details)
        return True

    def remove(self, *, initiator: Initiator, now: datetime, token: int | None = None) -> None:
        """Delete the calendar; raise Refused while an open schedule uses it."""
        with transaction.atomic():
            self._take(token)
            if users := self.used_by():
                raise Refused(
                    f"“{self}” is used by {named(users)}. Change or close every "
                    "schedule that uses the calendar, then delete the calendar."
                )
            details = self.definition()
            Activity.objects.record("delete", self, initiator=initiator, now=now, details=details)
            self.delete()

    def used_by(self) -> list[Schedule]:
        """Return the open schedules whose spec names the calendar."""
        return list(self.schedules.open().order_by(Lower("name")))

    def describe(self) -> str:
        """Describe in one sentence what the calendar excludes."""
        try:
            return calendar_in_words(self.excluded)
        except SpecError as error:
            return f"Invalid calendar: {error.message}"

    def upcoming_dates(self, year: int) -> list[tuple[date, str]]:
        """Return the excluded dates and public holidays of a year, each with its comment or name."""
        return sorted(set(_dates_of(self._items, year)))

    def matching_days(self, year: int) -> list[tuple[date, str]]:
        """Return the whole days of a year that the calendar's rules exclude, each with its comment."""
        return sorted(set(_matching_days(self._items, year)))

    @property
    def _items(self) -> Sequence[Exclusion]:
        """Return the parsed items, or no items if the calendar is invalid."""
        try:
            return calendar_items(self.excluded)
        except SpecError:
            return ()

    def check_definition(self) -> None:
        """Check all fields; raise ValidationError with errors by field."""
        self.full_clean(exclude=["excluded"])  # may be empty; `clean` checks it

    def clean(self) -> None:
        self.name = unicodedata.normalize("NFC", (self.name or "").strip())
        self.description = clean_lines((self.description or "").strip())
        check_plain_text(self.name, "name")
        try:
            items = calendar_items(self.excluded, name="excluded")
            self.excluded = [item.as_json() for item in items]
        except SpecError as error:
            raise ValidationError({"excluded": error.message}) from error

    def _take(self, token: int | None) -> None:
        """Lock and reload this calendar.

        Raise Conflict if `token` is outdated, or Refused if the calendar has been deleted.
        """
        fresh = SharedCalendar.objects.lock().filter(pk=self.pk).first()
        if fresh is None:
            raise Refused(f"“{self}” was deleted in the meantime.")
        if token is not None and token != fresh.token:
            raise Conflict(fresh.token, what="calendar")
        self.__dict__.update(
            {field.attname: getattr(fresh, field.attname) for field in self._meta.concrete_fields}
        )

    def _hand_on(self, before: object, *, initiator: Initiator, now: datetime) -> None:
        """Update all schedules that use the calendar; raise Refused if the edit would break any of them.

        `before` has the exclusions from before the edit.
        """
        locked = self.schedules.open().lock().order_by("pk")
        # A schedule may have been edited while this waited for its lock.
        schedules = [schedule for schedule in locked if self.name in schedule.calendars]
        for schedule in schedules:
            schedule.generate_until(now)
        lost = {schedule.pk: schedule.times_lost() for schedule in schedules}
        ended = [schedule for schedule in schedules if not self._hand_to(schedule, now=now)]
        if ended:
            raise Refused(
                f"{named(ended)} would have no scheduled times left. Exclude fewer times, or first change or "
                "close each schedule named here."
            )
        model = self.schedules.model
        moved = ("calendars", "token", *model.GENERATED)
        update_each(model, moved, [[s.pk, *(getattr(s, name) for name in moved)] for s in schedules])
        details = {
            "before": {"calendars": {self.name: before}},
            "after": {"calendars": {self.name: self.excluded}},
        }
        for message, edited in self._told(schedules, lost).items():
            Activity.objects.record_each(
                "edit", edited, initiator=initiator, now=now, message=message, details=details
            )
        wake("jim_schedules")

    def _told(self, schedules: Sequence[Schedule], lost: Mapping[int, str]) -> dict[str, list[Schedule]]:
        """Return a dict from each message to record to the schedules for which to record it.

        `lost` maps the id of each schedule to a note about times that were not recorded, or an empty string.
        """
        told: dict[str, list[Schedule]] = {}
        for schedule in schedules:
            mended = "" if schedule.spec_error else lost[schedule.pk]
            told.setdefault(f"The calendar “{self}” was edited. {mended}".strip(), []).append(schedule)
        return told

    def _hand_to(self, schedule: Schedule, *, now: datetime) -> bool:
        """Give the schedule the new exclusions; return False if this takes away all its upcoming times.

        Raise Refused if the schedule's spec was valid and would become invalid.
        """
        had_times, was_broken = schedule.next_run_at is not None, bool(schedule.spec_error)
        schedule.calendars = schedule.calendars | {self.name: self.excluded}
        schedule.token += 1
        try:
            schedule.restart_cursor(now)
            if schedule.next_run_at is not None and not was_broken:
                minimum = settings.JIM_MINIMUM_INTERVAL_SECONDS
                schedule.compiled_spec.check(now, minimum_seconds=minimum)
        except SpecError as error:
            if not was_broken:
                raise Refused(f"The spec of “{schedule}” would break: {error}") from error
            schedule.mark_broken(error)
        return schedule.next_run_at is not None or not had_times


def names_in(spec: object) -> list[str]:
    """Return the names of the calendars in a spec, even if the spec is invalid."""
    excluded = spec.get("exclude") if isinstance(spec, dict) else None
    items = excluded[:MOST_EXCLUSIONS] if isinstance(excluded, list) else []
    names = [item.get("calendar") for item in items if isinstance(item, dict)]
    return list(dict.fromkeys(clean_text(name.strip()) for name in names if isinstance(name, str)))


def _dates_of(items: Sequence[Exclusion], year: int) -> Iterator[tuple[date, str]]:
    for item in items:
        for day in _days(year):
            if isinstance(item, Dates) and item.first <= day <= item.last:
                yield day, item.comment
            elif isinstance(item, Holidays) and (name := item.name_on((day - EPOCH).days)):
                yield day, name


def _matching_days(items: Sequence[Exclusion], year: int) -> Iterator[tuple[date, str]]:
    matching = [item for item in items if isinstance(item, Matching)]
    for day in _days(year) if matching else ():
        for item in matching:
            if item.leaves_out_day((day - EPOCH).days):
                yield day, item.structured.comment


def _days(year: int) -> Iterator[date]:
    day = date(year, 1, 1)
    while day.year == year:
        yield day
        day += timedelta(days=1)
