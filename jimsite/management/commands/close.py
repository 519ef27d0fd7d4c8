from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.verbs import OperatingCommand, Target
from schedules.models import Schedule
from schedules.operations import Close

CLOSE = Close()
SCHEDULES = Target("NAME", "names or ids of schedules", Schedule.objects.called)


class Command(OperatingCommand):
    help = (
        "Close schedules permanently. Waiting runs are cancelled, running executions continue, the history "
        "is kept, and the names can be used again."
    )

    def ask(self, parser: CommandParser) -> None:
        self.ask_operation(parser, CLOSE, SCHEDULES)

    def run(self, options: dict[str, Any]) -> None:
        self.operate(CLOSE, SCHEDULES, options)
