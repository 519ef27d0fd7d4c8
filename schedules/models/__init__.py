"""The models of schedules."""

from __future__ import annotations

from .backfill import Backfill
from .labels import Tag
from .occurrence import Occurrence, Overlap
from .refusals import Conflict, KeyReused, Refused
from .schedule import Schedule
from .schedule_queryset import ScheduleQuerySet
from .secret import Secret
from .shared_calendar import SharedCalendar
from .step import MAX_STEPS, Step
from .template import TaskTemplate

__all__ = [
    "MAX_STEPS",
    "Backfill",
    "Conflict",
    "KeyReused",
    "Occurrence",
    "Overlap",
    "Refused",
    "Schedule",
    "ScheduleQuerySet",
    "Secret",
    "SharedCalendar",
    "Step",
    "Tag",
    "TaskTemplate",
]
