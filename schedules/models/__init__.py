from __future__ import annotations

from .occurrence import Occurrence
from .schedule import BUFFER_LIMIT, Conflict, Refused, Schedule, ScheduleQuerySet
from .secret import Secret
from .step import MAX_STEPS, Step

__all__ = [
    "BUFFER_LIMIT",
    "MAX_STEPS",
    "Conflict",
    "Occurrence",
    "Refused",
    "Schedule",
    "ScheduleQuerySet",
    "Secret",
    "Step",
]
