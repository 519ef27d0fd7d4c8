"""What other apps may hear of. Receivers are inside the transaction, and only insert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.dispatch import Signal

# ids: the activities that have just ended; operation: what they are, unless they are runs;
# is_heard: False if it is known that nobody listens.
activities_finished = Signal()

# events: a sequence of `Event`, for what happens without an activity that ends; is_heard: the same.
noticed = Signal()

# Conditions in SQL under which somebody listens.
listening: list[str] = []


def somebody_listens() -> str:
    """A condition: the statement that does what is told of can ask that as well."""
    return f"({' OR '.join(listening) or 'FALSE'})"


@dataclass(frozen=True)
class Event:
    """`data` holds what cannot be looked up, and the ids of what can."""

    kind: str
    at: datetime
    schedule_id: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
