from __future__ import annotations

import shlex
from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import chosen_schedules, in_words, named_schedules
from jimsite.terminal import JimCommand
from schedules.models import Refused, Schedule


class Command(JimCommand):
    help = (
        "Resume paused schedules. Runs that came due during the pause start if the catch-up window and the "
        "overlap policy allow it; with --discard, they are skipped. --tag and --all resume only schedules "
        "that were paused with the same option."
    )

    def ask(self, parser: CommandParser) -> None:
        named_schedules(parser, every="all schedules that “pause --all” paused")
        parser.add_argument(
            "--discard", action="store_true", help="skip the runs that came due during the pause"
        )

    def run(self, options: dict[str, Any]) -> None:
        how = {"initiator": self.by, "now": self.now, "discard": options["discard"]}
        if options["all"]:
            self._resume_all(how)
            return
        named, tagged = chosen_schedules(options)
        for schedule in named:
            schedule.resume(**how)
        resumed, left = self._resume_tagged(tagged, how | {"tags": options["tag"]})
        told = [_left(schedule, options["tag"]) for schedule in left]
        if tagged and not (named or resumed):
            nothing = f"No schedule with the {in_words(options['tag'])} is paused."
            raise Refused(f"Nothing was resumed. {' '.join(told)}" if told else nothing)
        told = [f"“{schedule}” is resumed." for schedule in named + resumed] + told
        facts = {"resumed": [each.name for each in named + resumed], "left": [each.name for each in left]}
        self.tell(facts, lambda: self.say("\n".join(told)))

    def _resume_tagged(
        self, tagged: list[Schedule], how: dict[str, Any]
    ) -> tuple[list[Schedule], list[Schedule]]:
        resumed, left = [], []
        for schedule in tagged:
            try:
                schedule.resume(**how, together=True)
                resumed.append(schedule)
            except Refused:
                left += [schedule] if schedule.is_paused else []
        return resumed, left

    def _resume_all(self, how: dict[str, Any]) -> None:
        count = Schedule.objects.resume_all(**how)
        left = Schedule.objects.filter(status=Schedule.Status.PAUSED).count()
        told = (
            f"Schedules resumed: {count:,}. Still paused, because “pause --all” did not pause them: {left:,}."
        )
        self.tell({"resumed_together": count, "left": left}, lambda: self.say(told))


def _left(schedule: Schedule, tags: list[str]) -> str:
    asked = " ".join(f"--tag {shlex.quote(tag)}" for tag in tags)
    way = f"resume {shlex.quote(schedule.name)}"
    return f"“{schedule}” stays paused: it was not paused with {asked}. To resume it, use “{way}”."
