from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import schedule_name, wall_or_instant
from jimsite.terminal import JimCommand
from schedules.models import Schedule


class Command(JimCommand):
    help = (
        "Explain why a schedule ran or did not run at a given time, or whether it will run at a future time."
    )

    def ask(self, parser: CommandParser) -> None:
        schedule_name(parser)
        parser.add_argument(
            "time",
            metavar="TIME",
            help="time in the schedule's time zone or with an offset: 2026-12-01T09:00, or 09:00 for today",
        )

    def run(self, options: dict[str, Any]) -> None:
        schedule, now = Schedule.objects.called(options["schedule"]), self.now
        answer = schedule.why(wall_or_instant("TIME", options["time"], schedule, now=now), now=now)
        self.tell({"schedule": schedule.name} | answer.as_json(), lambda: self.say(str(answer)))
