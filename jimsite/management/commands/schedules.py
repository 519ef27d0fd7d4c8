from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db.models.functions import Lower
from rich.text import Text

from jimsite.arguments import at_most
from jimsite.terminal import JimCommand, on_clock, state, when
from schedules.description import state_of
from schedules.models import Schedule, ScheduleQuerySet
from schedules.spec.wording import counted
from text.clean import search_text

STATES = ("open", "active", "paused", "overdue", "broken", "closed", "all")
OUTCOMES = ("completed", "failed", "cancelled")


class Command(JimCommand):
    help = "List schedules with their times, next run and last outcome."

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument(
            "text", nargs="?", default="", help="only schedules whose name contains this text"
        )
        parser.add_argument(
            "--state",
            choices=STATES,
            default="open",
            help="only schedules in this state (default: open, which means not closed)",
        )
        parser.add_argument(
            "--tag",
            action="append",
            default=[],
            help="only schedules with this tag; can be repeated to require several tags",
        )
        parser.add_argument(
            "--outcome", choices=OUTCOMES, help="only schedules whose last execution ended like this"
        )
        parser.add_argument("--names", action="store_true", help="print only the names, one per line")
        at_most(parser, 100)

    def run(self, options: dict[str, Any]) -> None:
        now = self.now
        rows = chosen(options, now=now)
        if options["names"]:
            self.stdout.write("".join(f"{name}\n" for name in rows.values_list("name", flat=True)))
            return
        found = list(rows.defer("last_result")[: options["limit"] + 1])
        shown, is_more = found[: options["limit"]], len(found) > options["limit"]
        facts = {"schedules": [facts_of(each, now=now) for each in shown], "is_more": is_more}
        self.tell(facts, lambda: self._show(shown, is_more=is_more, now=now))

    def _show(self, schedules: Sequence[Schedule], *, is_more: bool, now: datetime) -> None:
        if not schedules:
            self.say("No schedules match these filters." if Schedule.objects.exists() else NONE_YET)
            return
        columns: dict[str, list[str | Text]] = {
            "State": [_state(each, now) for each in schedules],
            "Schedule": [Text(each.name, style="bold") for each in schedules],
            "Next run": [when(_next(each), now=now) for each in schedules],
            "At": [_at(each, now) for each in schedules],
            "Last run": [_last(each, now) for each in schedules],
            "When": [_sentence(each) for each in schedules],
            "Tags": [", ".join(each.tags) for each in schedules],
        }
        more = (
            f"Showing the first {counted(len(schedules), 'schedule')}; use --limit to see more."
            if is_more
            else ""
        )
        self.columns(columns, spare=("Tags", "At", "When"), rest=more)


NONE_YET = (
    "No schedules yet. Create one in the browser, import some with “importschedules FILE”, or create "
    "examples with “demo”."
)


def chosen(options: dict[str, Any], *, now: datetime) -> ScheduleQuerySet:
    rows = _in_state(options["state"], now=now).tagged(*options["tag"])
    if options["text"]:
        rows = rows.filter(name__icontains=search_text(options["text"]))
    if options["outcome"]:
        rows = rows.filter(last_outcome=options["outcome"])
    return rows.order_by(Lower("name"), "pk")


def _in_state(name: str, *, now: datetime) -> ScheduleQuerySet:
    rows: ScheduleQuerySet = Schedule.objects.all()
    match name:
        case "all":
            return rows
        case "overdue":
            return rows.open().overdue(now)
        case "broken":
            return rows.open().exclude(spec_error="")
        case "active":
            return rows.filter(status=Schedule.Status.ACTIVE, spec_error="")
        case "paused" | "closed":
            return rows.filter(status=name)
    return rows.open()


def facts_of(schedule: Schedule, *, now: datetime) -> dict[str, Any]:
    return {
        "id": schedule.pk,
        "name": schedule.name,
        "state": state_of(schedule),
        "is_overdue": schedule.is_overdue(now),
        "sentence": schedule.spec_in_words,
        "time_zone": schedule.zone.key,
        "tags": schedule.tags,
        "next_run_at": schedule.next_run_at,
        "last_run_at": schedule.last_run_at,
        "last_outcome": schedule.last_outcome,
        "failures_in_a_row": schedule.failures_in_a_row,
        "paused_until": schedule.paused_until,
        "pause_note": schedule.pause_note,
        "spec_error": schedule.spec_error,
    }


def _state(schedule: Schedule, now: datetime) -> Text:
    name = state_of(schedule)
    return state("overdue") if name == "active" and schedule.is_overdue(now) else state(name)


def _next(schedule: Schedule) -> datetime | None:
    return None if schedule.is_paused else schedule.next_run_at


def _at(schedule: Schedule, now: datetime) -> str:
    """Format the next time in the schedule's time zone; in the next six days, a weekday replaces the date."""
    if (at := _next(schedule)) is None:
        return ""
    is_soon = timedelta(0) <= at - now < timedelta(days=6)
    local, place = at.astimezone(schedule.zone), schedule.zone.key.rpartition("/")[2]
    return f"{local:{'%a %H:%M' if is_soon else '%Y-%m-%d %H:%M'}} {place}"


def _last(schedule: Schedule, now: datetime) -> Text:
    """Show the last outcome, and how long ago the execution began."""
    ago = when(schedule.last_run_at, now=now)
    return state(schedule.last_outcome).append(f" {ago}") if schedule.last_outcome else Text(ago)


def _sentence(schedule: Schedule) -> str:
    if schedule.is_paused:
        until = f" until {on_clock(schedule.paused_until, schedule.zone)}" if schedule.paused_until else ""
        note = f": {schedule.pause_note}" if schedule.pause_note else ""
        return f"{schedule.spec_in_words}; paused{until}{note}"
    return schedule.spec_in_words
