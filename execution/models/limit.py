from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.db import OperationalError, connection, models, transaction
from django.urls import reverse

from activities.models import Activity
from database.statements import fetch, write
from database.wake import wake
from execution.queue.concurrency import SEPARATOR, Room, key_complaint
from execution.queue.conditions import HELD
from execution.queue.dialect import dialect
from operations.initiator import Initiator
from schedules.models import Refused
from text.clean import clean_text

from .worker import Worker

BUSY = "Limits cannot be changed now because the queue is too busy. Try again in a few seconds."
PATIENCE_MILLISECONDS = 2_000
LOCK_TIMEOUT, DEADLOCK = "55P03", "40P01"


class LimitQuerySet(models.QuerySet["Limit"]):
    def define(self, key: str, size: Any, *, initiator: Initiator, now: datetime, note: str = "") -> Limit:
        """Create a limit. Tasks that are already running count towards it.

        If a value is invalid, nothing is saved.
        """
        limit = Limit(key=(key or "").strip(), size=size, note=note)
        limit.check_definition()
        with queue_at_rest():
            if self.filter(pk=limit.key).exists():
                raise ValidationError(
                    {"key": "A limit with this key already exists. Change the size of that limit instead."}
                )
            limit.save(force_insert=True)
            _mark(limit.key)
            Activity.objects.record("create", limit, initiator=initiator, now=now, details=limit.definition())
        return limit

    def put(
        self, key: str, size: Any, *, initiator: Initiator, now: datetime, note: str | None = None
    ) -> Limit:
        """Create a limit, or change the size of an existing one. If `note` is None, a stored note is kept."""
        limit = self.filter(pk=clean_text(key.strip())).first()
        if limit is None:
            return self.define(key, size, initiator=initiator, now=now, note=note or "")
        changes = {"size": size} | ({} if note is None else {"note": note})
        limit.edit(changes=changes, initiator=initiator, now=now)
        return limit

    def room(self, *, limit_keys: str, pool: str, apart_from: UUID | None = None) -> bool:
        """Return whether one more task with these keys can run. The answer holds until the transaction ends.

        A reservation takes up room only while its request runs, so a waiting reservation does not keep other
        work from a seat. The reservation with the id `apart_from` is not counted. A pool without a limit has
        as many seats as its workers have together.
        """
        sizes = self.lock_sizes(limit_keys.split(SEPARATOR))
        seats = {} if f"pool:{pool}" in sizes else {pool: self._seats(pool)}
        taken = (
            "SELECT limit_keys, pool, 1 FROM execution_reservation "
            "WHERE released_at IS NULL AND taken_at IS NOT NULL AND id <> %s"
        )
        # No reservation has the id 0.
        own = models.UUIDField().get_db_prep_value(apart_from or UUID(int=0), connection)
        return Room.left(sizes, seats, fetch(f"{HELD} UNION ALL {taken}", [own])).fits(limit_keys, pool)

    def lock_sizes(self, keys: Iterable[str]) -> dict[str, int]:
        """Lock the existing limits with these keys, and return their sizes by key.

        The lock ensures that only one transaction at a time counts the tasks of a limit. Count the tasks in a
        later statement, which sees everything that was committed before the lock was granted.
        """
        return dialect().lock_limits(set(keys))

    def _seats(self, pool: str) -> int:
        """Count the seats of a pool that has no limit; lock the pool's reservation in place of a limit."""
        dialect().lock_reservations([pool])
        return Worker.objects.seats_of(pool)


class Limit(models.Model):
    """The number of tasks with one key that can run at once, on all workers together."""

    EDITABLE = ("size", "note")

    key = models.CharField(max_length=100, primary_key=True)
    size = models.PositiveIntegerField(
        validators=[MaxValueValidator(100_000)],
        help_text="How many tasks with this key can run at once. If 0, no tasks with this key start.",
    )
    note = models.CharField(max_length=200, blank=True)

    objects = LimitQuerySet.as_manager()

    def __str__(self) -> str:
        return self.key

    def get_absolute_url(self) -> str:
        return reverse("web:limit", args=[self.pk])

    def definition(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.EDITABLE}

    def edit(self, *, changes: Mapping[str, Any], initiator: Initiator, now: datetime) -> bool:
        """Change the limit. Running tasks continue, even if the new size allows fewer of them.

        Return False if no value differs. In that case, nothing is saved or recorded.
        """
        if unknown := set(changes) - set(self.EDITABLE):
            raise ValidationError(dict.fromkeys(sorted(unknown), "This field cannot be edited."))
        with queue_at_rest():
            before = self._take().definition()
            for name, value in changes.items():
                setattr(self, name, value)
            self.check_definition()
            if self.definition() == before:
                return False
            self.save(force_update=True)
            details = {"before": before, "after": self.definition()}
            Activity.objects.record("edit", self, initiator=initiator, now=now, details=details)
            if self.size > before["size"]:
                wake("jim_tasks")
        return True

    def remove(self, *, initiator: Initiator, now: datetime) -> None:
        """Delete the limit. Tasks that waited because of it can start, unless another limit is full."""
        with queue_at_rest():
            details = self._take().definition()
            Activity.objects.record("delete", self, initiator=initiator, now=now, details=details)
            Limit.objects.filter(pk=self.pk).delete()
            _unmark(self.key)
            wake("jim_tasks")

    def check_definition(self) -> None:
        """Clean the note and check all fields; raise ValidationError with the errors by field."""
        self.note = clean_text((self.note or "").strip())
        self.full_clean(validate_unique=False, validate_constraints=False)

    def clean_fields(self, exclude: Any = None) -> None:
        super().clean_fields(exclude)
        if "key" not in (exclude or ()) and (complaint := key_complaint(self.key)):
            raise ValidationError({"key": f"This key {complaint}."})

    def _take(self) -> Limit:
        """Lock the limit and read its values again; raise Refused if it was deleted in the meantime."""
        fresh = Limit.objects.filter(pk=self.pk).select_for_update(of=("self",), no_key=True).first()
        if fresh is None:
            raise Refused(f"The limit “{self}” was deleted in the meantime.")
        self.size, self.note = fresh.size, fresh.note
        return self


@contextmanager
def queue_at_rest() -> Iterator[None]:
    """Run the block in a transaction while no other transaction can queue, claim or end tasks.

    The block can therefore set `is_limited` on all tasks with a key without missing any. Raise Refused if
    other transactions do not release the queue soon.

    The lock also waits for transactions that have locked rows and are about to write them. The queue is
    locked before any limit, as in claims, so that there are no deadlocks.
    """
    try:
        with transaction.atomic():
            dialect().lock_queue(milliseconds=PATIENCE_MILLISECONDS)
            yield
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", "") in (LOCK_TIMEOUT, DEADLOCK) or "locked" in str(error):
            raise Refused(BUSY) from error
        raise


def _mark(key: str) -> None:
    write(
        "UPDATE execution_workertask SET is_limited = TRUE "
        f"WHERE NOT is_limited AND {dialect().has_key('%s')}",
        [key],
    )


def _unmark(key: str) -> None:
    write(
        "UPDATE execution_workertask SET is_limited = FALSE "
        f"WHERE is_limited AND {dialect().has_key('%s')} AND NOT ({dialect().HAS_LIMIT})",
        [key],
    )
