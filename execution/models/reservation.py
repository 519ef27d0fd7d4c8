from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import Q

from activities.models import Activity, Ending
from database.statements import fetch, found_in, insert_each
from database.wake import wake
from execution.queue.concurrency import SEPARATOR
from execution.queue.conditions import READY, READY_LIMITED
from execution.queue.dialect import dialect
from execution.queue.order import by_turn
from operations.initiator import Initiator

from .limit import Limit
from .planned import ACTIVITY_FIELDS, Planned
from .worker import lease

# The condition of each state, by the name that `Reservation.state` returns.
STATES = {
    "waiting": Q(released_at=None, taken_at=None),
    "running": Q(released_at=None, taken_at__isnull=False),
    "released": Q(released_at__isnull=False),
}
LOST = "the process that ran the step was lost"
_TURN = f"{by_turn()} LIMIT 1"
_IS_ANY_READY = " UNION ALL ".join(
    f"SELECT 1 FROM execution_workertask WHERE {ready} AND pool = %s" for ready in (READY, READY_LIMITED)
)
_UNLIMITED = " UNION ALL ".join(
    "SELECT * FROM (SELECT id, priority, position FROM execution_workertask "
    f"WHERE {READY} AND pool = %s AND isolation = '{isolation}' {_TURN}) AS {isolation}"
    for isolation in ("thread", "process")
)
_FIRST_OF_SET = (
    f"SELECT n.id FROM execution_workertask n WHERE {READY_LIMITED} AND n.limit_keys = s.limit_keys "
    f"AND n.isolation = s.isolation AND n.pool = s.pool {_TURN}"
)


UNSTARTED = "the seat was released, or its lease ended, before the step could start; send the request again"


class Lost(Exception):
    """The direct request no longer holds its seat: its lease ended, or the seat was released."""


class ReservationQuerySet(models.QuerySet["Reservation"]):
    def live(self) -> ReservationQuerySet:
        return self.filter(released_at=None)

    def lapsed(self, now: datetime) -> ReservationQuerySet:
        """Keep the live reservations whose lease has ended."""
        return self.live().filter(lease_until__lt=now)

    def reserve(
        self,
        line: Mapping[str, Any],
        *,
        holder: str,
        now: datetime,
        then: Callable[[Reservation], object] = lambda reservation: None,
    ) -> Reservation | None:
        """Reserve the next free seat of the line's pool for a direct request.

        Return None if another request has reserved this seat, or if a queued task must start first. `then` is
        called with the new reservation, in the same transaction.
        """
        reservation = self._reserve(line, holder, now, then)
        if reservation is None and self.filter(pool=line["pool"]).expire(now):
            reservation = self._reserve(line, holder, now, then)
        return reservation

    def in_the_way(self, pool: str, *, now: datetime) -> Reservation | None:
        """Return the reservation that prevents a new one in this pool; None if there is none.

        This is the live reservation, if its lease is valid. If no reservation is live, it is the last
        released one, for as long as a queued task must start before the next reservation.
        """
        rows = list(self.filter(pool=pool).order_by("-released_at"))
        for live in (each for each in rows if each.released_at is None):
            return live if live.lease_until >= now else None
        return rows[0] if rows and rows[0].lets_pass(now) else None

    def expire(self, now: datetime) -> int:
        """Release the seats of reservations whose lease has ended; return how many were released."""
        return sum(reservation.lapse(now) for reservation in self.lapsed(now))

    def prune(self, *, before: datetime, limit: int) -> int:
        """Delete up to `limit` reservations that were released before this time; return how many there were.

        The time must be more than one lease ago: until then, the last reservation of a pool can still require
        that a queued task starts before the next reservation.
        """
        old = self.filter(released_at__lt=before).values_list("pk", flat=True)[:limit]
        return self.filter(pk__in=list(old)).delete()[0]

    def _reserve(
        self, line: Mapping[str, Any], holder: str, now: datetime, then: Callable[[Reservation], object]
    ) -> Reservation | None:
        """Insert a reservation in a transaction of its own, because it works only once others can see it.

        Return None if another request has reserved the seat, or if a queued task must start first.
        """
        with transaction.atomic(durable=True):
            reservation = self._insert(line, holder, now)
            if reservation is None or not self._is_its_turn(reservation, now):
                return None
            then(reservation)
        return reservation

    def _insert(self, line: Mapping[str, Any], holder: str, now: datetime) -> Reservation | None:
        """Insert a reservation and return it; return None if the pool already has a live one."""
        made = Reservation(
            pool=line["pool"],
            limit_keys=line["limit_keys"],
            holder=holder,
            created_at=now,
            lease_until=now + lease(),
        )
        fields = ("id", "pool", "limit_keys", "holder", "created_at", "lease_until")
        row = [getattr(made, name) for name in fields]
        return made if insert_each(Reservation, fields, [row], unless_known=True, returning="id") else None

    def _is_its_turn(self, reservation: Reservation, now: datetime) -> bool:
        """Return whether this reservation may have the seat; delete it if a queued task must start first.

        Call this after the insert: while this reservation is live, the pool cannot get another live one.
        Older released reservations of the pool are deleted, except for the last.
        """
        others = self.filter(pool=reservation.pool).exclude(pk=reservation.pk)
        released = list(others.order_by("-released_at"))
        if any(last.lets_pass(now) for last in released[:1]):
            self.filter(pk=reservation.pk).delete()
            return False
        if older := [each.pk for each in released[1:]]:
            self.filter(pk__in=older).delete()
        return True


class Reservation(models.Model):
    """The next free seat of a pool, kept for a direct request. It counts as taken until it is released."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    pool = models.CharField(max_length=40)
    limit_keys = models.CharField(max_length=1_200, blank=True)
    holder = models.CharField(
        max_length=255,
        help_text="The host and the id of the process that made the direct request and renews the lease.",
    )
    activity = models.ForeignKey(Activity, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField()
    taken_at = models.DateTimeField(null=True, help_text="When the direct request got its seat.")
    lease_until = models.DateTimeField()
    released_at = models.DateTimeField(null=True)
    passes_first = models.BigIntegerField(
        null=True,
        help_text="The id of the queued task that must start before the next direct request in this pool.",
    )

    objects = ReservationQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool"], name="reservation_once", condition=Q(released_at__isnull=True)
            ),
        ]
        indexes = [models.Index(fields=["pool", "-released_at"], name="reservation_of_pool")]

    def __str__(self) -> str:
        return f"{self.pool} for {self.holder}"

    @property
    def state(self) -> str:
        if self.released_at is not None:
            return "released"
        return "waiting" if self.taken_at is None else "running"

    @property
    def limits(self) -> list[str]:
        """Return the limit keys of the direct request."""
        return self.limit_keys.split(SEPARATOR) if self.limit_keys else []

    def take(
        self,
        line: Mapping[str, Any],
        *,
        initiator: Initiator,
        now: datetime,
        clock: Callable[[], datetime] | None = None,
    ) -> bool:
        """Take a free seat and start the direct request with a new activity; return False if no seat is free.

        Raise Lost if the reservation has been released. The activity has the id of the reservation in place
        of a worker's id. Locking the limits can take long, so the start time is read from `clock` after that;
        without a `clock`, the start time is `now`.
        """
        with transaction.atomic(savepoint=False):
            if not self.sees_room():
                return False
            now = clock() if clock else now
            planned = Planned(dict(line), initiator)
            [self.activity_id] = Activity.objects.add(
                (*ACTIVITY_FIELDS, "worker_id", "details"),
                [(*planned.activity, self.pk, {"step": planned.line})],
                status=Activity.Status.IN_PROGRESS,
                now=now,
            )
            taken = self._if_live().filter(taken_at=None)
            if not taken.update(taken_at=now, lease_until=now + lease(), activity=self.activity_id):
                raise Lost(UNSTARTED)
        self.taken_at = now
        return True

    def sees_room(self) -> bool:
        """Return whether a seat is free. Outside a transaction, the answer can change at any moment."""
        return Limit.objects.room(limit_keys=self.limit_keys, pool=self.pool, apart_from=self.pk)

    def beat(self, now: datetime) -> bool:
        """Renew the lease; return False if the seat has been released."""
        return self._if_live().update(lease_until=now + lease()) == 1

    def finish(self, ending: Ending, *, now: datetime) -> bool:
        """Record how the request ended, and release the seat; return False if it had been released before."""
        with transaction.atomic():
            is_own = self._release(self._if_live(), now)
            if is_own:
                Activity.objects.finish([ending])
        return is_own

    def release(self, now: datetime, *, why: str = "cancelled") -> bool:
        """Release the seat; return False if it had been released before.

        If a request is running in the seat, the request counts as cancelled. Its process learns this at the
        next heartbeat.
        """
        with transaction.atomic():
            is_own = self._release(self._if_live(), now)
            if is_own:
                self._end(Activity.Status.CANCELLED, now, message=why)
        return is_own

    def free(self, *, initiator: Initiator, now: datetime, reason: str = "") -> bool:
        """Release the seat on behalf of `initiator`; return False if it had been released before."""
        with transaction.atomic():
            is_freed = self.release(
                now, why=f"The seat of this direct request was released by {initiator.name}."
            )
            if is_freed:
                Activity.objects.record("release", self, initiator=initiator, now=now, message=reason)
        return is_freed

    def lapse(self, now: datetime) -> bool:
        """Release the seat if its lease has ended; return whether it was released.

        A step that was running in the seat counts as failed.
        """
        with transaction.atomic():
            is_over = self._release(self._if_live().filter(lease_until__lt=now), now)
            if is_over:
                self._end(Activity.Status.FAILED_WITH_ERROR, now, error=LOST, permanently_failed=True)
        return is_over

    def lets_pass(self, now: datetime) -> bool:
        """Return whether the task `passes_first` must still start before the next reservation is made.

        At the latest one lease after the release, the task no longer comes first.
        """
        if self.passes_first is None or self.released_at is None or now >= self.released_at + lease():
            return False
        ready = "SELECT 1 FROM execution_workertask WHERE id = %s AND status = 'queued' AND NOT is_delayed"
        return bool(fetch(ready, [self.passes_first]))

    def _if_live(self) -> ReservationQuerySet:
        """Return a query for this reservation that finds nothing once the reservation has been released."""
        return Reservation.objects.live().filter(pk=self.pk)

    def _release(self, held: ReservationQuerySet, now: datetime) -> bool:
        is_released = held.update(released_at=now, passes_first=_first_of(self.pool)) == 1
        if is_released:
            wake("jim_tasks")
        return is_released

    def _end(self, status: str, now: datetime, **words: Any) -> None:
        if self.activity_id is not None and self.taken_at is not None:
            finished_at = max(self.taken_at, now)
            Activity.objects.finish([Ending(self.activity_id, status, finished_at, self.taken_at, **words)])


def _first_of(pool: str) -> int | None:
    """Return the id of the next ready task in the pool; None if there is none.

    Indexes make this fast, however long the queue is.
    """
    if not fetch(f"{_IS_ANY_READY} LIMIT 1", [pool] * 2):
        return None
    limited = (
        "SELECT t.id, t.priority, t.position FROM s "
        f"JOIN execution_workertask t ON t.id {found_in(_FIRST_OF_SET)} WHERE s.pool = %s"
    )
    firsts = f"SELECT id FROM ({limited} UNION ALL {_UNLIMITED}) AS firsts {_TURN}"
    rows = fetch(f"{dialect().SETS} {firsts}", [pool] * 3)
    return rows[0][0] if rows else None
