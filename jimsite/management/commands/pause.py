from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import chosen_schedules, instant, length, named_schedules
from jimsite.terminal import JimCommand, on_clock
from schedules.models import Refused, Schedule


class Command(JimCommand):
    help = (
        "Pause schedules: scheduled times are still recorded, but no automatic runs start. Running "
        "executions continue, and manual runs can be started. --tag and --all do not change schedules that "
        "are already paused."
    )

    def ask(self, parser: CommandParser) -> None:
        named_schedules(parser, every="all active schedules; “resume --all” resumes them together")
        parser.add_argument("--note", default="", help="reason, shown with the schedule")
        until = parser.add_mutually_exclusive_group()
        until.add_argument("--until", default="", metavar="TIME", help="resume automatically at this time")
        until.add_argument(
            "--for",
            dest="length",
            type=length,
            metavar="DURATION",
            help="resume automatically after this time: 90m, 2d",
        )

    def run(self, options: dict[str, Any]) -> None:
        if options["all"]:
            self._pause_all(options)
            return
        named, tagged = chosen_schedules(options)
        for schedule in named:
            self._pause(schedule, options)
        left = {each.name: said for each in tagged if (said := self._pause_with_others(each, options))}
        paused = named + [each for each in tagged if each.name not in left]
        facts = {
            "paused": [{"schedule": each.name, "until": each.paused_until} for each in paused],
            "left": list(left),
        }
        told = [f"“{each}” is paused{_ends(each)}." for each in paused]
        self.tell(facts, lambda: self.say("\n".join([*told, *left.values()])))

    def _pause_with_others(self, schedule: Schedule, options: dict[str, Any]) -> str:
        """Pause a schedule that was chosen by tag; return why this was refused, or an empty string."""
        try:
            self._pause(schedule, options, together=True, tags=options["tag"])
        except Refused as refused:
            return str(refused)
        return ""

    def _pause(self, schedule: Schedule, options: dict[str, Any], **how: Any) -> None:
        now, until = self.now, None
        if options["until"]:
            until = instant("--until", options["until"], schedule, now=now)
        elif options["length"]:
            until = now + options["length"]
        schedule.pause(initiator=self.by, now=now, note=options["note"], until=until, **how)

    def _pause_all(self, options: dict[str, Any]) -> None:
        if options["until"] or options["length"]:
            raise Refused(
                "--all cannot be combined with --until or --for: use “resume --all” to end a pause of all "
                "schedules."
            )
        left = Schedule.objects.filter(status=Schedule.Status.PAUSED).count()
        count = Schedule.objects.pause_all(initiator=self.by, now=self.now, note=options["note"])
        told = f"Schedules paused: {count:,}. Already paused and not changed: {left:,}."
        self.tell({"paused_together": count, "left": left}, lambda: self.say(told))


def _ends(schedule: Schedule) -> str:
    until, zone = schedule.paused_until, schedule.zone
    return f" until {on_clock(until, zone)} {zone.key}" if until else ""
