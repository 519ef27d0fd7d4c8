from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from execution.checks import ENGINE
from execution.loops.running import run_until_signal
from execution.loops.scheduler import SchedulerLoop
from schedules.management.usable_database import require_migrated


class Command(BaseCommand):
    help = (
        "Start executions that are due, and recover the tasks of crashed workers. You can run several "
        "schedulers at the same time. SIGTERM or Ctrl-C stops the scheduler."
    )
    requires_system_checks = [ENGINE]

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated("schedules_schedule")
        run_until_signal(SchedulerLoop())
