"""Queries and bulk changes of schedules."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection, models, transaction
from django.db.models import F, Q

from activities.models import Activity
from activities.signals import Event, noticed
from database.statements import among, read, set_locally, update_each
from database.wake import wake
from operations.initiator import Initiator
from schedules import permissions
from text.clean import clean_text, search_text
from text.numbers import whole_number

from .labels import clean_tags
from .occurrence import Occurrence
from .refusals import Refused, unknown_schedule
from .shared_calendar import SharedCalendar
from .template import TaskTemplate, as_they_run

if TYPE_CHECKING:
    from .schedule import Schedule

# The settings of a transaction that locks schedules. It waits at most a second for each lock. Its query plans
# use only indexes, because PostgreSQL can keep a plan while tables grow.
SETTINGS = {"lock_timeout": "1s", "enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off"}


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def open(self) -> ScheduleQuerySet:
        return self.exclude(status=self.model.Status.CLOSED)

    def due(self, now: datetime) -> ScheduleQuerySet:
        return self.filter(next_run_at__lte=now)

    def unfilled(self) -> ScheduleQuerySet:
        return self.filter(processed_until=None)

    def snoozed_until(self, now: datetime) -> ScheduleQuerySet:
        return self.filter(status=self.model.Status.PAUSED, paused_until__lte=now)

    def overdue(self, now: datetime) -> ScheduleQuerySet:
        """Keep the schedules whose next run is so long overdue that no scheduler seems to be running."""
        return self.filter(next_run_at__lt=now - timedelta(seconds=settings.JIM_OVERDUE_SECONDS))

    def paused_by_failures(self) -> ScheduleQuerySet:
        return self.filter(is_paused_by_failures=True)

    def notice_overdue(self, *, now: datetime, limit: int) -> int:
        """Send an event about each overdue time that was not reported yet; return how many times were found.

        At most `limit` times are reported. Any process can call this, because the scheduler might not be
        running.
        """
        told = Q(overdue_noticed_at=F("next_run_at"))
        rows = self.overdue(now).filter(Q(overdue_noticed_at=None) | ~told).order_by("next_run_at")
        overdue = list(rows.values_list("pk", "next_run_at")[:limit])
        if not overdue:
            return 0
        with transaction.atomic():
            where = "t.next_run_at = v.overdue_noticed_at"
            where += " AND (t.overdue_noticed_at IS NULL OR t.overdue_noticed_at <> v.overdue_noticed_at)"
            noted = update_each(self.model, ("overdue_noticed_at",), sorted(overdue), where=where)
            noticed.send(
                self.model,
                events=[
                    Event("schedule.overdue", now, pk, {"next_run_at": at.isoformat()})
                    for pk, at in overdue
                    if at and pk in noted
                ],
            )
        return len(overdue)

    def tagged(self, *tags: str) -> ScheduleQuerySet:
        """Keep the schedules that have all of these tags."""
        tagged = self
        for tag in tags:
            tagged = tagged.filter(tag_rows__name=search_text(tag))
        return tagged

    def chosen_by(self, tags: Sequence[str]) -> ScheduleQuerySet:
        """Keep the open schedules with all of these tags; raise Refused if no open schedule has the tags."""
        chosen = self.open().tagged(*clean_tags(list(tags)))
        if tags and not chosen.exists():
            words = f"{'tags' if len(tags) > 1 else 'tag'} {' and '.join(tags)}"
            raise Refused(f"No open schedule has the {words}.")
        return chosen

    def called(self, wanted: str) -> Schedule:
        """Return the schedule with this name (preferably an open one) or id; raise Refused if none exists."""
        name = clean_text(unicodedata.normalize("NFC", wanted.strip()))
        same = self.filter(name__iexact=name).order_by("-pk")
        found = same.open().first() or same.first()
        if found is None and (pk := whole_number(name)) is not None:
            found = self.filter(pk=pk).first()
        if found is None:
            names = self.open().order_by("name").values_list("name", flat=True)
            raise unknown_schedule(name, list(names))
        return found

    def lock(self, *, skip_locked: bool = False) -> ScheduleQuerySet:
        return self.select_for_update(of=("self",), no_key=True, skip_locked=skip_locked)

    def lock_in_order(self, ids: Sequence[int], *, skip_locked: bool = False) -> list[Schedule]:
        """Lock the schedules in the order of their ids, and return them.

        With `skip_locked`, leave out schedules that another process has locked. Otherwise wait for each lock,
        on PostgreSQL for at most a second.
        """
        theirs, params = among("schedules_schedule.id", ids)
        ending = f"WHERE {theirs} ORDER BY schedules_schedule.id"
        if connection.vendor == "postgresql":
            if not skip_locked:
                set_locally(SETTINGS)
            ending += f" FOR NO KEY UPDATE OF schedules_schedule{' SKIP LOCKED' if skip_locked else ''}"
        names = [field.attname for field in self.model._meta.concrete_fields]
        return [self.model.from_db(self.db, names, row) for row in read(self.model, names, ending, params)]

    def pause_all(
        self,
        *,
        initiator: Initiator,
        now: datetime,
        note: str = "",
        until: Callable[[Schedule], datetime | None] = lambda schedule: None,
        tags: Sequence[str] = (),
    ) -> int:
        """Pause each active schedule, and return how many were paused.

        To keep locks short, each schedule is paused in its own transaction. `until` returns the end of the
        pause for a schedule, or None. `tags` are the tags by which the schedules were selected, if any. To
        resume these schedules, call `resume_all` with the same tags.
        """
        return self.filter(status=self.model.Status.ACTIVE)._each(
            lambda schedule: schedule.pause(
                initiator=initiator, now=now, note=note, until=until(schedule), together=True, tags=tags
            )
        )

    def resume_all(
        self, *, initiator: Initiator, now: datetime, discard: bool = False, tags: Sequence[str] = ()
    ) -> int:
        """Resume the schedules that `pause_all` paused with the same tags; return how many were resumed."""
        return self.paused_together(tags)._each(
            lambda schedule: schedule.resume(
                initiator=initiator, now=now, discard=discard, together=True, tags=tags
            )
        )

    def paused_together(self, tags: Sequence[str] = ()) -> ScheduleQuerySet:
        return self.filter(
            status=self.model.Status.PAUSED, is_paused_together=True, paused_tags=clean_tags(list(tags))
        )

    def _each(self, change: Callable[[Schedule], None]) -> int:
        """Apply a change to each schedule, and return how many schedules were changed.

        A schedule that refuses the change is not counted. All schedules are read before the first change,
        because SQLite cannot write while it reads.
        """
        changed = 0
        for schedule in list(self.order_by("pk").only("name", "spec")):
            with suppress(Refused):  # changed by another process in the meantime
                change(schedule)
                changed += 1
        return changed

    def define(
        self,
        *,
        steps: Sequence[Mapping[str, Any]],
        initiator: Initiator,
        now: datetime,
        paused: bool = False,
        note: str = "",
        run_at_once: bool = False,
        may: permissions.May = permissions.anything,
        **fields: Any,
    ) -> Schedule:
        """Create a schedule with its steps; if anything is wrong, raise ValidationError and save nothing."""
        schedule = self.model(**fields)
        with transaction.atomic():
            SharedCalendar.objects.lock_named_in(schedule.spec)
            templates = TaskTemplate.objects.lock_needed_by(steps)
            permissions.check_writer(as_they_run(steps, templates), may)
            schedule.check_definition(steps, templates=templates, now=now)
            if paused:
                schedule._set_paused(now, note=note)
            schedule.restart_cursor(now)
            schedule.save(force_insert=True)
            schedule._replace_steps(steps, templates)
            schedule._index()
            if schedule.topics:
                schedule._follow_topics(now)
            Activity.objects.record(
                "create", schedule, initiator=initiator, now=now, details=schedule._editable()
            )
            if run_at_once:
                Occurrence.manual(schedule, initiator=initiator, now=now).save()
            wake("jim_schedules")
        return schedule
