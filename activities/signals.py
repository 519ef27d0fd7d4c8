"""Signals about activities. Receivers run inside the transaction and may only insert rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.dispatch import Signal

# The arguments: `ids` are the activities that have just ended; `operation` is their operation, if they are
# not runs; `is_heard` is False if it is certain that no app listens.
activities_finished = Signal()

# The arguments: `events` is a sequence of `Event`, for changes that do not end an activity; `is_heard` is as
# above.
noticed = Signal()

# SQL conditions, each of which is true if the app that added it listens.
listening: list[str] = []


def listener_condition() -> str:
    """Return an SQL condition that is true if any app listens to these signals.

    A statement that writes can also return the value of the condition, which saves a separate query.
    """
    return f"({' OR '.join(listening) or 'FALSE'})"


@dataclass(frozen=True)
class Event:
    """Something that happened. `data` has ids of stored rows, and values that are not stored elsewhere."""

    kind: str
    at: datetime
    schedule_id: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
