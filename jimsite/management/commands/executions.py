from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from rich.text import Text

from execution.models import Execution
from execution.models.execution_queryset import ExecutionQuerySet
from jimsite.arguments import at_most, length
from jimsite.progress import facts_of
from jimsite.terminal import JimCommand, on_clock, state
from schedules.models import Schedule
from schedules.spec.wording import counted
from text.words import span

STATES = ("in_progress", "cancelling", "late", "completed", "failed", "cancelled")


class Command(JimCommand):
    help = "List executions, newest first."

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument(
            "schedule", nargs="?", default="", metavar="NAME", help="only executions of this schedule"
        )
        parser.add_argument("--state", choices=STATES, help="only executions in this state")
        parser.add_argument(
            "--within",
            type=length,
            metavar="DURATION",
            help="only executions that started at most this long ago: 12h, 7d",
        )
        at_most(parser, 20)

    def run(self, options: dict[str, Any]) -> None:
        now = self.now
        found = list(chosen(options, now=now)[: options["limit"] + 1])
        shown, is_more = found[: options["limit"]], len(found) > options["limit"]
        facts = {"executions": [facts_of(each, now=now) for each in shown], "is_more": is_more}
        self.tell(facts, lambda: self._show(shown, is_more=is_more, now=now))

    def _show(self, executions: Sequence[Execution], *, is_more: bool, now: datetime) -> None:
        if not executions:
            self.say("No executions match these filters.")
            return
        columns: dict[str, list[str | Text]] = {
            "Id": [str(each.pk) for each in executions],
            "State": [state(each.state) for each in executions],
            "Schedule": [Text(each.schedule_name, style="bold") for each in executions],
            "Started (UTC)": [on_clock(each.started_at) for each in executions],
            "Took": [span((each.finished_at or now) - each.started_at) for each in executions],
            "Source": [each.source or "ad hoc" for each in executions],
            "By": [_who(each) for each in executions],
            "Error": [each.error.partition("\n")[0] for each in executions],
        }
        more = (
            f"Showing the newest {counted(len(executions), 'execution')}; use --limit to see more."
            if is_more
            else ""
        )
        self.columns(columns, spare=("Source", "By", "Took"), rest=more)


def chosen(options: dict[str, Any], *, now: datetime) -> ExecutionQuerySet:
    rows: ExecutionQuerySet = Execution.objects.select_related("activity", "occurrence")
    rows = rows.defer("plan", "last_result").order_by("-pk")
    if options["schedule"]:
        rows = rows.filter(schedule=Schedule.objects.called(options["schedule"]))
    if options["within"]:
        rows = rows.filter(started_at__gte=now - options["within"])
    match options["state"]:
        case None:
            return rows
        case "late":
            return rows.late(now)
        case "cancelling":
            return rows.in_progress().filter(cancel_requested_at__isnull=False)
    return rows.filter(status=options["state"])


def _who(execution: Execution) -> str:
    by = execution.activity
    return "" if by.initiator_type == "schedule" else by.initiator_name
