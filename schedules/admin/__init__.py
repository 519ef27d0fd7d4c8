from __future__ import annotations

import activities.admin
from schedules import registry

from .occurrence import OccurrenceAdmin
from .operations import ScheduleOperation
from .schedule import ScheduleAdmin
from .secret import SecretAdmin

__all__ = ["OccurrenceAdmin", "ScheduleAdmin", "ScheduleOperation", "SecretAdmin"]

activities.admin.operations |= {"create", "edit", "pause", "resume", "close", "delete", "rotate"}
activities.admin.target_types.append(lambda: ["schedule", "secret", *registry.step_types])
