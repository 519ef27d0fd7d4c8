from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.verbs import OperatingCommand, Target
from schedules.models import Schedule
from schedules.operations import Close

CLOSE = Close()
SCHEDULES = Target("NAME", "the schedules, by name or id", Schedule.objects.called)


class Command(OperatingCommand):
    help = (
        "Close schedules for good: they never run again and cannot be opened again. What is pending is "
        "cancelled, what is running goes on, their history stays, and their names become free."
    )

    def ask(self, parser: CommandParser) -> None:
        self.ask_operation(parser, CLOSE, SCHEDULES)

    def run(self, options: dict[str, Any]) -> None:
        self.operate(CLOSE, SCHEDULES, options)
