from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import chosen_schedules, named_schedules
from jimsite.terminal import JimCommand
from schedules.models import Schedule


class Command(JimCommand):
    help = (
        "Resume paused schedules. Times that passed meanwhile start by catch-up window and overlap policy, "
        "or are discarded."
    )

    def ask(self, parser: CommandParser) -> None:
        named_schedules(parser, every="those that were paused together, and no others")
        parser.add_argument(
            "--discard", action="store_true", help="record the times that passed meanwhile as skipped"
        )

    def run(self, options: dict[str, Any]) -> None:
        discard: bool = options["discard"]
        if options["all"]:
            count = Schedule.objects.resume_all(initiator=self.by, now=self.now, discard=discard)
            self.tell({"resumed_together": count}, lambda: self.say(f"Resumed together: {count:,}."))
            return
        resumed = chosen_schedules(options)
        for schedule in resumed:
            schedule.resume(initiator=self.by, now=self.now, discard=discard)
        told = "\n".join(f"“{schedule}” runs again." for schedule in resumed)
        self.tell({"resumed": [schedule.name for schedule in resumed]}, lambda: self.say(told))
