from __future__ import annotations

from .backfill import BackfillAdmin
from .occurrence import OccurrenceAdmin
from .schedule import ScheduleAdmin
from .secret import SecretAdmin
from .shared_calendar import SharedCalendarAdmin
from .task_template import TaskTemplateAdmin

__all__ = [
    "BackfillAdmin",
    "OccurrenceAdmin",
    "ScheduleAdmin",
    "SecretAdmin",
    "SharedCalendarAdmin",
    "TaskTemplateAdmin",
]
