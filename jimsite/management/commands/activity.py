from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandError, CommandParser
from rich.text import Text

from activities.models import Activity, ActivityItem, OutputLine
from jimsite.arguments import activity_called, at_most
from jimsite.output import Tail, shown
from jimsite.progress import counted, took
from jimsite.terminal import CANCELLED, FAILED, INTERRUPTED, JimCommand, as_json, on_clock, printable, state
from text.words import span

RELATED_SHOWN = 100
# What only the items of some steps have.
OF_OBJECTS = ("change", "error_type", "object", "external_id", "data")


class Command(JimCommand):
    help = (
        "Show an activity: the record of an execution, of one attempt of a step or job, or of an "
        "administrative change. With --follow, show the output live until the activity and its retries have "
        "ended, and exit with a code for the outcome."
    )
    exit_codes = {FAILED: "failed", CANCELLED: "cancelled", INTERRUPTED: "interrupted"}

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("activity", metavar="ID", help="number of the activity, or id of a job or step")
        parser.add_argument(
            "--follow",
            action="store_true",
            help="show the output live until the activity and its retries have ended",
        )
        parser.add_argument("--items", action="store_true", help="also list the items, failed ones first")
        at_most(parser, 20)

    def run(self, options: dict[str, Any]) -> None:
        activity = activity_called(options["activity"])
        if options["follow"]:
            self._follow(activity)
            return
        self.tell(facts_of(activity, options), lambda: self._show(activity, options))

    def _follow(self, activity: Activity) -> None:
        tail = Tail(activity)
        for line in tail.lines():
            if self.is_json:
                self._write_json(line_facts(line))
            else:
                self.console.print(shown(line, prefix=tail.prefix(line)), soft_wrap=True)
        if self.is_json:
            self._write_json({"ended": brief(tail.last)})
        if code := exit_code(tail.last):
            words = printable(tail.last.error or tail.last.message)
            ended = f"“{tail.last.target_name}” {tail.last.status.replace('_', ' ')}"
            raise CommandError(f"{ended}: {words}" if words else f"{ended}.", returncode=code)

    def _write_json(self, facts: dict[str, Any]) -> None:
        """Write one object per line, so that the output can be read while it is written."""
        self.stdout.write(f"{json.dumps(as_json(facts), ensure_ascii=False)}\n")
        self.stdout.flush()

    def _show(self, activity: Activity, options: dict[str, Any]) -> None:
        title = Text(f"{activity.target_name}  ", style="bold") + state(activity.status)
        self.console.print(title, soft_wrap=True)
        self.facts(_facts(activity))
        attempts = activity.chain()
        if len(attempts) > 1:
            self._show_activities("Attempt", attempts[-RELATED_SHOWN:])
        if parts := list(activity.children.order_by("step_index", "line", "attempt")[:RELATED_SHOWN]):
            self._show_activities("Part", parts)
        if options["items"]:
            self._show_items(activity, options["limit"])
        for name, text in (("Error", activity.error), ("Traceback", activity.traceback)):
            self._show_block(name, text)
        if activity.result is not None:
            self._show_block("Result", json.dumps(activity.result, indent=2, ensure_ascii=False))
        self._show_tail(activity, options["limit"])

    def _show_activities(self, heading: str, rows: list[Activity]) -> None:
        self.console.print()
        columns: dict[str, list[str | Text]] = {
            heading: [str(row.attempt) if heading == "Attempt" else row.target_name for row in rows],
            "State": [state(row.status) for row in rows],
            "Took": [took(row, now=self.now) for row in rows],
            "Activity": [str(row.pk) for row in rows],
            "Message": [(row.error or row.message).partition("\n")[0] for row in rows],
        }
        self.columns(columns)

    def _show_items(self, activity: Activity, limit: int) -> None:
        items = item_rows(activity, limit)
        self.console.print()
        if not items:
            self.say(
                f"The step counted {activity.items_total:,} objects without recording an item for each."
                if activity.items_total
                else "This activity has no items."
            )
            return
        # A smaller number may only mean that the step has counted items without recording them.
        rest = (
            f"Showing {len(items):,} of {activity.items_total:,} items; use --limit to see more."
            if len(items) == limit < activity.items_total
            else ""
        )
        columns: dict[str, list[str | Text]] = {
            "Outcome": [state(item.outcome) for item in items],
            "Change": [item.change for item in items],
            "Item": [item.name for item in items],
            "External id": [item.external_id for item in items],
            "Error": [item.error_type for item in items],
            "Message": [item.message for item in items],
            "Data": ["; ".join(str(detail) for detail in item.details) for item in items],
        }
        self.columns(columns, rest=rest)

    def _show_block(self, name: str, text: str) -> None:
        if text:
            self.console.print()
            self.console.print(Text(name, style="bold"))
            for line in text.splitlines():
                self.console.print(shown(line), soft_wrap=True)

    def _show_tail(self, activity: Activity, limit: int) -> None:
        lines = last_lines(activity, limit)
        if lines:
            self.console.print()
            first = f" from line {lines[0].number:,}" if lines[0].number > 1 else ""
            self.console.print(Text(f"Output{first}", style="bold"))
        for line in lines:
            self.console.print(shown(line), soft_wrap=True)


def _facts(activity: Activity) -> list[tuple[str, str | Text]]:
    items = f"{activity.items_total:,}, {activity.items_failed:,} failed" if activity.items_total else ""
    by = f"{activity.initiator_name} ({activity.initiator_type.replace('_', ' ')})"
    rows: list[tuple[str, str | Text]] = [
        ("Operation", activity.operation),
        ("Target", activity.target_type),
        ("By", by),
        ("Created", f"{on_clock(activity.created_at)} UTC"),
        ("Began", f"{on_clock(activity.executed_at)} UTC" if activity.executed_at else ""),
        ("Took", span(activity.duration) if activity.duration is not None else ""),
        ("Progress", counted(activity)),
        ("Items", items),
        ("Outcome", activity.finality),
        ("Message", activity.message),
        ("Part of", f"activity {activity.parent_id}" if activity.parent_id else ""),
        ("Key", str(activity.task_key or "")),
        ("Worker", str(activity.worker_id or "")),
    ]
    return [(name, text) for name, text in rows if text]


def exit_code(activity: Activity) -> int:
    if activity.status == Activity.Status.CANCELLED:
        return CANCELLED
    return FAILED if activity.failed else 0


def item_rows(activity: Activity, limit: int) -> list[Any]:
    rows = activity.items.order_by("pk")
    failed = list(rows.filter(outcome="failed")[:limit])
    return failed + list(rows.exclude(outcome="failed")[: limit - len(failed)])


def last_lines(activity: Activity, limit: int) -> list[OutputLine]:
    return list(activity.output.order_by("-number")[:limit])[::-1]


def facts_of(activity: Activity, options: dict[str, Any]) -> dict[str, Any]:
    parts = activity.children.order_by("step_index", "line", "attempt")[:RELATED_SHOWN]
    facts = brief(activity) | {
        "operation": activity.operation,
        "target": {"type": activity.target_type, "id": activity.target_id, "name": activity.target_name},
        "initiator": {
            "type": activity.initiator_type,
            "id": activity.initiator_id,
            "name": activity.initiator_name,
        },
        "created_at": activity.created_at,
        "parent": activity.parent_id,
        "key": activity.task_key,
        "worker": activity.worker_id,
        "progress": {"done": activity.progress_done, "total": activity.progress_total},
        "items": {"total": activity.items_total, "failed": activity.items_failed},
        "traceback": activity.traceback,
        "result": activity.result,
        "attempts": [brief(each) for each in activity.chain()[-RELATED_SHOWN:]],
        "parts": [brief(each) for each in parts],
        "output": [line_facts(line) for line in last_lines(activity, options["limit"])],
    }
    if options["items"]:
        rows = item_rows(activity, options["limit"])
        facts["item_rows"] = [_item_facts(row) for row in rows]
    return facts


def _item_facts(item: ActivityItem) -> dict[str, Any]:
    facts = {"name": item.name, "outcome": item.outcome, "message": item.message}
    return facts | {name: value for name in OF_OBJECTS if (value := getattr(item, name))}


def brief(activity: Activity) -> dict[str, Any]:
    return {
        "id": activity.pk,
        "name": activity.target_name,
        "status": activity.status,
        "attempt": activity.attempt,
        "started_at": activity.executed_at,
        "finished_at": activity.finished_at,
        "message": activity.message,
        "error": activity.error,
        "permanently_failed": activity.permanently_failed,
    }


def line_facts(line: OutputLine) -> dict[str, Any]:
    return {
        "activity": line.activity_id,
        "number": line.number,
        "stream": line.stream,
        "text": line.text,
        "written_at": line.written_at,
    }
