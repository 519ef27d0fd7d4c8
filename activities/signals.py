"""Signals about activities. Receivers run inside the transaction and may only insert rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.dispatch import Signal

# ids: the activities that have just ended; operation: their operation, if they are not runs;
# is_heard: False if it is certain that no app listens.
activities_finished = Signal()

# events: a sequence of `Event`, for changes that do not end an activity; is_heard: as above.
noticed = Signal()

# Conditions in SQL that are true if an app listens.
listening: list[str] = []


def listener_condition() -> str:
    """Return a condition in SQL, so that a statement can check for listeners while it writes."""
    return f"({' OR '.join(listening) or 'FALSE'})"


@dataclass(frozen=True)
class Event:
    """Something that happened. `data` has ids of stored rows, and values that are not stored elsewhere."""

    kind: str
    at: datetime
    schedule_id: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
