"""Usage per caller and minute, summed over all web processes.

Each process counts in memory. It adds to the database only when its count reaches a share of the rate limit.
A caller well below the limit therefore causes no database statements, and a caller above the limit causes at
most one statement for each share of the limit.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock

from django.db import models

from database.statements import AWAY, fetch
from execution.loops.housekeeping import BATCH

MINUTE = 60
KEPT_MINUTES = 60
# The number of shares in a rate limit. Each process can exceed the limit by one share.
SHARES = 20


class UsageQuerySet(models.QuerySet["Usage"]):
    def add(self, subject: str, minute: int, amount: int) -> int:
        """Add an amount to the usage of a caller in a minute. Return the total of all processes."""
        [(total,)] = fetch(
            "INSERT INTO api_usage (subject, minute, amount) VALUES (%s, %s, %s) "
            "ON CONFLICT (subject, minute) DO UPDATE SET amount = api_usage.amount + excluded.amount "
            "RETURNING amount",
            [subject, minute, amount],
        )
        return int(total)

    def prune_old(self, now: datetime) -> int:
        old = self.filter(minute__lt=minute_of(now) - KEPT_MINUTES)
        return self.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


class Usage(models.Model):
    """The usage of one caller in one minute."""

    subject = models.CharField(max_length=100)
    minute = models.BigIntegerField(help_text="Minutes since 1970, in UTC.")
    amount = models.BigIntegerField()

    objects = UsageQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["minute", "subject"], name="usage_once_per_minute")]


@dataclass
class _Counted:
    """The last known total of a caller (`everywhere`), and the usage that is not yet in it (`here`)."""

    everywhere: int = 0
    here: int = 0


@dataclass
class Meter:
    """The usage of all callers in the current minute; it can lack recent usage in other processes."""

    minute: int = -1
    counted: dict[str, _Counted] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def used(self, subject: str, now: datetime) -> int:
        with self.lock:
            mine = self._at(now).get(subject) or _Counted()
            return mine.everywhere + mine.here

    def add(self, subject: str, amount: int, *, most: int, now: datetime) -> int:
        """Add to a caller's usage in this minute. Return the total.

        `most` is the rate limit of the caller. The total can lack recent usage in other processes.
        """
        with self.lock:
            mine = self._at(now).setdefault(subject, _Counted())
            mine.here += amount
            share = mine.here if mine.here >= max(1, most // SHARES) and mine.everywhere <= most else 0
            mine.here -= share
            mine.everywhere += share
        if share:
            with suppress(*AWAY):
                total = Usage.objects.add(subject, minute_of(now), share)
                # Meanwhile, another thread might have added more and read a higher sum.
                mine.everywhere = max(mine.everywhere, total)
        return mine.everywhere + mine.here

    def _at(self, now: datetime) -> dict[str, _Counted]:
        if self.minute != minute_of(now):
            self.minute, self.counted = minute_of(now), {}
        return self.counted


meter = Meter()


def minute_of(now: datetime) -> int:
    return int(now.timestamp()) // MINUTE


def seconds_left(now: datetime) -> int:
    """Return the seconds until the next minute, when counting starts again."""
    return MINUTE - int(now.timestamp()) % MINUTE
