"""Queries and bulk changes of backfills, and requests for new ones."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, NotRequired, TypedDict, Unpack

from django.conf import settings
from django.db import connection, models
from django.db.models import Count, Exists, F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from database.statements import among, write
from database.wake import wake
from operations.initiator import Initiator

from .occurrence import Occurrence

if TYPE_CHECKING:
    from .backfill import Backfill, Survey
    from .schedule import Schedule


class TimeRange(TypedDict):
    """A time range, both ends included, and which of the scheduled times in the range to run."""

    start_at: datetime
    end_at: datetime
    which: NotRequired[str]


class BackfillRequest(TimeRange):
    """The options of a request for a backfill. The model has the defaults of options that are left out."""

    overlap: NotRequired[str]
    key: NotRequired[str]


def share_of_schedule() -> int:
    """Return how many pending occurrences all backfills of a schedule together may have."""
    return int(settings.JIM_BUFFER_LIMIT) // 2


class BackfillQuerySet(models.QuerySet["Backfill"]):
    def open(self) -> BackfillQuerySet:
        return self.filter(status=self.model.Status.OPEN)

    def due(self, now: datetime) -> BackfillQuerySet:
        """Keep the open backfills whose next slice is due and that are not waiting for room in the buffer."""
        return self.open().filter(slice_at__lte=now)

    def moving(self) -> BackfillQuerySet:
        """Keep the backfills that are open or still have pending occurrences."""
        waiting = Occurrence.objects.pending().filter(backfill=OuterRef("pk"))
        return self.filter(Q(status=self.model.Status.OPEN) | Exists(waiting))

    def with_waiting(self) -> BackfillQuerySet:
        """Annotate the numbers of `waiting` (pending occurrences) and `settled` (other processed times)."""
        pending = Occurrence.objects.pending().filter(backfill=OuterRef("pk")).order_by().values("backfill")
        waiting = Coalesce(Subquery(pending.annotate(count=Count("pk")).values("count")), 0)
        return self.annotate(waiting=waiting, settled=F("passed_count") - waiting).defer("spec", "calendars")

    def ask(
        self, schedule: Schedule, *, initiator: Initiator, now: datetime, **asked: Unpack[BackfillRequest]
    ) -> Backfill:
        """Create a backfill of a range with the schedule's current spec, and return the backfill.

        The range includes both ends. If the schedule already has a backfill with the same key, return that
        backfill instead.
        """
        wanted = self.model.draft(schedule, now=now, **asked)
        # Look for a repeated request before counting: the first request may have left no times to run.
        return wanted.asked_before() or wanted.count(initiator).open()

    def counted(
        self, schedule: Schedule, *, initiator: Initiator, now: datetime, **asked: Unpack[BackfillRequest]
    ) -> Backfill:
        """Return an unsaved backfill, with the number of its times.

        Call this outside of transactions, because counting the times can take long.
        """
        return self.model.draft(schedule, now=now, **asked).count(initiator)

    def survey(
        self, schedule: Schedule, *, now: datetime, limit: int = 10, **times: Unpack[TimeRange]
    ) -> Survey:
        """Return which times `ask` would run, listing at most the first `limit` of them; save nothing."""
        return self.model.draft(schedule, now=now, **times).survey(limit=limit)

    def make_room(self, schedule_ids: Iterable[int], *, now: datetime) -> None:
        """Let backfills that wait for room continue if at least half of their schedule's share is free.

        So new occurrences are added before all earlier ones have started. The caller has locked the
        schedules.
        """
        theirs, params = among("schedule_id", list(schedule_ids))
        widened = write(
            "UPDATE schedules_backfill SET slice_at = %s "
            f"WHERE status = 'open' AND slice_at IS NULL AND {theirs} AND schedule_id NOT IN ("
            "SELECT schedule_id FROM schedules_occurrence "
            f"WHERE status = 'pending' AND source = 'backfill' AND {theirs} "
            "GROUP BY schedule_id HAVING count(*) > %s)",
            [connection.ops.adapt_datetimefield_value(now), *params, *params, share_of_schedule() // 2],
        )
        if widened:
            wake("jim_schedules")

    def prune(self, *, before: datetime, limit: int) -> int:
        """Delete up to `limit` backfills that ended before `before` and have no occurrences left."""
        old = self.filter(finished_at__lt=before, occurrences=None)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:limit])).delete()[0]
