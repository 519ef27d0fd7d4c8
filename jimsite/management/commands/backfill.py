from __future__ import annotations

from datetime import time
from typing import Any

from django.core.management.base import CommandParser

from jimsite.arguments import instant, overlap, schedule_name
from jimsite.terminal import JimCommand, on_clock
from schedules.models import Backfill, Schedule
from schedules.models.backfill import USUAL_OVERLAP, USUAL_WHICH, Survey
from schedules.spec.wording import counted

TIMES_SHOWN = 10


class Command(JimCommand):
    help = (
        "Run a schedule for its scheduled times in a past range, with its current definition. Other runs "
        "that are due start before the runs of a backfill."
    )

    def ask(self, parser: CommandParser) -> None:
        schedule_name(parser)
        for name, dest, meaning in (
            (
                "--from",
                "start",
                "start of the range, in the schedule's time zone: 2026-11-01 or 2026-11-01T09:00",
            ),
            ("--to", "end", "end of the range; a date includes the whole day, up to now"),
        ):
            parser.add_argument(name, dest=dest, required=True, metavar="TIME", help=meaning)
        parser.add_argument(
            "--which",
            choices=Backfill.Which.values,
            default=USUAL_WHICH,
            help="all: every scheduled time; missing (default): times without an execution; failed: times "
            "whose last execution failed",
        )
        overlap(parser, f"{USUAL_OVERLAP}, one after the other")
        parser.add_argument(
            "--dry-run", action="store_true", help="show which runs would start, without starting them"
        )

    def run(self, options: dict[str, Any]) -> None:
        schedule, now = Schedule.objects.called(options["schedule"]), self.now
        start = instant("--from", options["start"], schedule, now=now)
        end = instant("--to", options["end"], schedule, now=now, at=time(23, 59, 59))
        if len(options["end"]) == len("2026-11-01"):
            end = min(end, now)
        asked = {"start_at": start, "end_at": end, "which": options["which"], "now": now}
        survey = Backfill.objects.survey(schedule, **asked, limit=TIMES_SHOWN)
        made = None
        if not options["dry_run"]:
            policy = options["overlap"] or USUAL_OVERLAP
            made = Backfill.objects.ask(schedule, **asked, overlap=policy, initiator=self.by)
        self.tell(_facts(schedule, survey, made), lambda: self._show(schedule, survey, made))

    def _show(self, schedule: Schedule, survey: Survey, made: Backfill | None) -> None:
        runs = counted(survey.chosen, "run")
        if made is not None:
            self.say(f"Created backfill {made.pk} of “{schedule}”: {runs}.")
            return
        if not survey.total:
            self.say(f"Dry run: “{schedule}” has no scheduled times in this range.")
        elif not survey.chosen:
            self.say(f"Dry run: no runs of “{schedule}” would start.")
        else:
            self.say(f"Dry run: {runs} of “{schedule}” would start.")
        for at in survey.times:
            self.say(f"  {on_clock(at, schedule.zone)} {schedule.zone.key}")
        if survey.last and survey.last not in survey.times:
            self.say(f"  … until {on_clock(survey.last, schedule.zone)}")
        for reason, count in sorted(survey.left_out.items()):
            self.say(f"Left out: {count:,} {reason}.")


def _facts(schedule: Schedule, survey: Survey, made: Backfill | None) -> dict[str, Any]:
    return {
        "schedule": schedule.name,
        "backfill": made.pk if made else None,
        "dry_run": made is None,
        "total": survey.total,
        "chosen": survey.chosen,
        "first_times": survey.times,
        "last_time": survey.last,
        "left_out": dict(survey.left_out),
    }
