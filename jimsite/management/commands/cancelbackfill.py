from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import backfill_called
from jimsite.verbs import OperatingCommand, Target
from schedules.operations import CancelBackfill

CANCEL = CancelBackfill()
BACKFILLS = Target("ID", "its number: “describe NAME” shows it", backfill_called)


class Command(OperatingCommand):
    help = (
        "Cancel backfills: nothing more of them starts, and what is running goes on. They cannot be taken up "
        "again."
    )

    def ask(self, parser: CommandParser) -> None:
        self.ask_operation(parser, CANCEL, BACKFILLS)

    def run(self, options: dict[str, Any]) -> None:
        self.operate(CANCEL, BACKFILLS, options)
