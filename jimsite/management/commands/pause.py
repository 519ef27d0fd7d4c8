from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import chosen_schedules, instant, length, named_schedules
from jimsite.terminal import JimCommand, on_clock
from schedules.models import Refused, Schedule


class Command(JimCommand):
    help = (
        "Pause schedules: their automatic runs wait from now on, and their times are still recorded. What is "
        "running goes on, and runs by hand stay possible."
    )

    def ask(self, parser: CommandParser) -> None:
        named_schedules(parser, every="those that run; “resume --all” resumes them together")
        parser.add_argument("--note", default="", help="why, for whoever finds it paused")
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--until", default="", metavar="TIME", help="it then resumes by itself")
        until.add_argument("--for", dest="length", type=length, metavar="DURATION", help="such as 90m or 2d")

    def run(self, options: dict[str, Any]) -> None:
        if options["all"]:
            self._pause_all(options)
            return
        paused = [(each, self._pause(each, options)) for each in chosen_schedules(options)]
        facts = [{"schedule": each.name, "until": until} for each, until in paused]
        self.tell({"paused": facts}, lambda: self.say("\n".join(_told(*each) for each in paused)))

    def _pause(self, schedule: Schedule, options: dict[str, Any]) -> datetime | None:
        now, until = self.now, None
        if options["until"]:
            until = instant("--until", options["until"], schedule, now=now)
        elif options["length"]:
            until = now + options["length"]
        schedule.pause(initiator=self.by, now=now, note=options["note"], until=until)
        return until

    def _pause_all(self, options: dict[str, Any]) -> None:
        if options["until"] or options["length"]:
            raise Refused("--all pauses until “resume --all”: leave out --until and --for.")
        count = Schedule.objects.pause_all(initiator=self.by, now=self.now, note=options["note"])
        self.tell({"paused_together": count}, lambda: self.say(f"Paused together: {count:,}."))


def _told(schedule: Schedule, until: datetime | None) -> str:
    ends = f" until {on_clock(until, schedule.zone)} {schedule.zone.key}" if until else ""
    return f"“{schedule}” is paused{ends}."
