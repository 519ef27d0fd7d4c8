"""Turn plan lines into tasks: many at once, as cheaply as each database allows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction

from activities.models import Activity
from database.statements import pipelined
from execution.queue.concurrency import limit_keys
from execution.queue.dialect import dialect
from operations.initiator import Initiator
from schedules.models import Step

from .brief import whole

AT_ONCE = 250
ACTIVITY_FIELDS = (
    "target_type",
    "target_id",
    "target_name",
    "initiator_type",
    "initiator_id",
    "initiator_name",
    "parent",
    "task_key",
    "step_index",
    "line",
)


class Planned(NamedTuple):
    """A plan line or a single job that is about to become a task."""

    line: dict[str, Any]
    initiator: Initiator
    status: str = "queued"
    execution_id: int | None = None
    root_id: int | None = None
    position: int = 0
    dedup_key: str = ""
    # The task does not start before this time; if None, it is ready immediately.
    later_at: datetime | None = None

    @property
    def activity(self) -> tuple[Any, ...]:
        line, by = self.line, self.initiator
        return (
            line["step_type"],
            line["key"],
            line["name"],
            by.type,
            by.id,
            by.name,
            self.root_id,
            line["key"],
            line["index"],
            line["line"],
        )

    def ended(self, status: str, message: str, *, now: datetime, **fields: Any) -> Activity:
        """Build the activity of a plan line that does not have to run."""
        own = dict(zip(ACTIVITY_FIELDS, self.activity, strict=True))
        own["parent_id"] = own.pop("parent")
        return Activity(**own, status=status, message=message, created_at=now, finished_at=now, **fields)


def add(planned: Iterable[Planned], *, now: datetime) -> None:
    """Add tasks and the activities of their first attempts, all or none, and wake the workers.

    While PostgreSQL writes one batch of tasks, the next batch is built. On SQLite, all tasks are built before
    the first one is written, so that the database's single write lock is held only briefly.
    """
    every = iter(planned if connection.vendor == "postgresql" else list(planned))
    some = list(islice(every, AT_ONCE))
    if len(some) < AT_ONCE:
        if some:
            dialect().add(some, now)
        return
    with transaction.atomic(), pipelined():
        while some:
            dialect().add(some, now)
            some = list(islice(every, AT_ONCE))


def new_key() -> UUID:
    """Return a UUID of version 7, so that keys made at about the same time are close together in an index."""
    milliseconds, random = time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big")
    return UUID(int=milliseconds << 80 | 7 << 76 | (random >> 68) << 64 | 2 << 62 | random & (1 << 62) - 1)


def up_to_date(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan line with default values for fields that an older version of JIM did not store."""
    told: dict[str, Any] = Step().as_json() | whole(line)
    return told if "limit_keys" in told else told | {"limit_keys": limit_keys(told)}
