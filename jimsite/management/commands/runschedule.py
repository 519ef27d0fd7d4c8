from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from execution.loops import manual_runs
from execution.models import Execution
from jimsite.arguments import instant, overlap, schedule_name
from jimsite.following import FollowingCommand
from jimsite.terminal import NOT_NOW
from schedules.models import Occurrence, Schedule


class Command(FollowingCommand):
    help = (
        "Run a schedule now, even if it is paused. With --wait, follow the execution until it ends, and exit "
        "with a code for the outcome."
    )

    def ask(self, parser: CommandParser) -> None:
        schedule_name(parser)
        parser.add_argument(
            "--at",
            default="",
            metavar="TIME",
            help="nominal time of the run, in the schedule's time zone: 2026-12-01T09:00 (default: now)",
        )
        overlap(parser, "the policy of the schedule")
        parser.add_argument(
            "--key", default="", help="idempotency key: the same key never starts a second run"
        )
        self.ask_to_wait(parser)

    def run(self, options: dict[str, Any]) -> None:
        schedule, now = Schedule.objects.called(options["schedule"]), self.now
        at = instant("--at", options["at"], schedule, now=now) if options["at"] else None
        try:
            occurrence = manual_runs.trigger(
                schedule, initiator=self.by, now=now, at=at, key=options["key"], overlap=options["overlap"]
            )
        except manual_runs.Overlapping as overlapping:
            hint = "Wait until the execution ends, or choose another overlap policy with --overlap."
            raise CommandError(f"{overlapping} {hint}", returncode=NOT_NOW) from None
        execution = Execution.objects.filter(occurrence=occurrence).first()
        if options["wait"]:
            self._announce(schedule, execution)
            self.follow(execution or self.await_turn(occurrence, options), options)
        else:
            self._tell(schedule, occurrence, execution)

    def _announce(self, schedule: Schedule, execution: Execution | None) -> None:
        if not self.is_json and execution is not None:
            self.say(f"Started “{schedule}”: execution {execution.pk}.")

    def _tell(self, schedule: Schedule, occurrence: Occurrence, execution: Execution | None) -> None:
        facts = {
            "schedule": schedule.name,
            "occurrence": occurrence.pk,
            "status": occurrence.status,
            "execution": execution.pk if execution else None,
        }
        waits = f"The run of “{schedule}” waits for a running execution to end (occurrence {occurrence.pk})."
        started = f"Started “{schedule}”: execution {execution.pk}." if execution else waits
        self.tell(facts, lambda: self.say(started))
