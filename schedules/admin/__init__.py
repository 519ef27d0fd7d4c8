from __future__ import annotations

import activities.admin
from schedules import registry

from .backfill import BackfillAdmin
from .occurrence import OccurrenceAdmin
from .operations import ScheduleOperation, instant
from .schedule import ScheduleAdmin
from .secret import SecretAdmin
from .shared_calendar import SharedCalendarAdmin
from .task_template import TaskTemplateAdmin

__all__ = [
    "BackfillAdmin",
    "OccurrenceAdmin",
    "ScheduleAdmin",
    "ScheduleOperation",
    "SecretAdmin",
    "SharedCalendarAdmin",
    "TaskTemplateAdmin",
    "instant",
]

activities.admin.operations |= {
    *("create", "edit", "pause", "resume", "close", "delete", "rotate"),
    *("skip", "unskip", "backfill", "cancel_backfill", "archive", "restore"),
}
activities.admin.target_types.append(
    lambda: ["schedule", "secret", "sharedcalendar", "tasktemplate", *registry.step_types]
)
