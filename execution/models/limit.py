from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.core.validators import MaxValueValidator
from django.db import connection, models

from activities.statements import fetch
from execution.concurrency import SEPARATOR, Room

from .worker import Worker

# What is in process counts until its end is committed, whoever is alive to say so.
HOLDERS = (
    "SELECT limit_keys, pool, count(*) FROM execution_workertask WHERE status = 'processing' "
    "GROUP BY limit_keys, pool"
)


class LimitQuerySet(models.QuerySet["Limit"]):
    def room(self, *, limit_keys: str, pool: str, apart_from: UUID | None = None) -> bool:
        """Whether one more with these keys may run now; true until the caller's transaction ends.

        Reservations count once they are taken: one that waits does not keep another from its seat. A pool
        without a limit has as many seats as its workers.
        """
        sizes = self.hold(limit_keys.split(SEPARATOR))
        seats = {} if f"pool:{pool}" in sizes else {pool: Worker.objects.seats_of(pool)}
        taken = (
            "SELECT limit_keys, pool, 1 FROM execution_reservation "
            "WHERE released_at IS NULL AND taken_at IS NOT NULL AND id <> %s"
        )
        # No reservation has the id 0.
        own = apart_from or UUID(int=0)
        params = [own if connection.vendor == "postgresql" else own.hex]
        return Room.left(sizes, seats, fetch(f"{HOLDERS} UNION ALL {taken}", params)).fits(limit_keys, pool)

    def hold(self, keys: Iterable[str]) -> dict[str, int]:
        """The sizes of those that exist. They are locked by key, as everybody does: who counts, counts alone.

        What is counted has to be read by a later statement, which sees all that was committed before.
        """
        rows = self.filter(pk__in=set(keys)).order_by("pk").select_for_update(of=("self",), no_key=True)
        return dict(rows.values_list("key", "size"))


class Limit(models.Model):
    """How many tasks with one key run at once, whoever runs them."""

    key = models.CharField(max_length=100, primary_key=True)
    size = models.PositiveIntegerField(
        validators=[MaxValueValidator(100_000)], help_text="0: nothing with this key starts."
    )
    note = models.CharField(max_length=200, blank=True)

    objects = LimitQuerySet.as_manager()

    def __str__(self) -> str:
        return self.key
