from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import backfill_called
from jimsite.verbs import OperatingCommand, Target
from schedules.operations import CancelBackfill

CANCEL = CancelBackfill()
BACKFILLS = Target("ID", "number of the backfill, as shown by “describe NAME”", backfill_called)


class Command(OperatingCommand):
    help = (
        "Cancel backfills: their remaining runs do not start, but running executions continue. A cancelled "
        "backfill cannot be resumed."
    )

    def ask(self, parser: CommandParser) -> None:
        self.ask_operation(parser, CANCEL, BACKFILLS)

    def run(self, options: dict[str, Any]) -> None:
        self.operate(CANCEL, BACKFILLS, options)
