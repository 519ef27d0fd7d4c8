from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import instant, schedule_name
from jimsite.terminal import JimCommand, on_clock
from schedules.models import Schedule


class Command(JimCommand):
    help = "Skip the next automatic run of a schedule. Run the command again to skip the one after it."

    def ask(self, parser: CommandParser) -> None:
        schedule_name(parser)
        parser.add_argument(
            "--undo",
            default="",
            metavar="TIME",
            help="undo the skip of the run at this time: 2026-12-01T09:00",
        )

    def run(self, options: dict[str, Any]) -> None:
        schedule, now = Schedule.objects.called(options["schedule"]), self.now
        if options["undo"]:
            at = instant("--undo", options["undo"], schedule, now=now)
            schedule.unskip(at, initiator=self.by, now=now)
        else:
            at = schedule.skip_next(initiator=self.by, now=now)
        clock = f"{on_clock(at, schedule.zone)} {schedule.zone.key}"
        result = f"{'no longer skips' if options['undo'] else 'will skip'} its run at {clock}"
        facts = {"schedule": schedule.name, "at": at, "is_skipped": not options["undo"]}
        self.tell(facts, lambda: self.say(f"“{schedule}” {result}."))
