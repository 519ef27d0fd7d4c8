from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from rich.text import Text

from jimsite.terminal import JimCommand, state, when
from workflows.models import Workflow
from workflows.overview import Overview, overviews_of
from workflows.words import SHOWN_STATUSES

NONE_YET = (
    "No workflows yet. Write one in the module “workflows” of an installed app, and deploy it with "
    "“syncworkflows” or by starting a scheduler."
)


class Command(JimCommand):
    help = "List workflows with their state, issue, pending events and next run."

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("--state", choices=SHOWN_STATUSES, help="only workflows in this state")

    def run(self, options: dict[str, Any]) -> None:
        now, rows = self.now, Workflow.objects.order_by("slug")
        if options["state"]:
            rows = rows.shown_as(options["state"])
        found = overviews_of(list(rows), now=now)
        self.tell({"workflows": [facts_of(each) for each in found]}, lambda: self._show(found, now=now))

    def _show(self, found: Sequence[Overview], *, now: datetime) -> None:
        if not found:
            self.say("No workflows match these filters." if Workflow.objects.exists() else NONE_YET)
            return
        columns: dict[str, list[str | Text]] = {
            "State": [state(each.status) for each in found],
            "Workflow": [Text(each.workflow.slug, style="bold") for each in found],
            "Issue": [each.issue for each in found],
            "Pending": [_pending(each) for each in found],
            "Next": [when(each.next_at, now=now) for each in found],
            "When": [each.schedule for each in found],
        }
        self.columns(columns, spare=("When",))


def facts_of(seen: Overview) -> dict[str, Any]:
    run = seen.open_run
    return {
        "slug": seen.workflow.slug,
        "title": seen.workflow.title,
        "state": seen.status,
        "issue": seen.issue,
        "schedule": seen.schedule,
        "next_at": seen.next_at,
        "pending": [
            {"topic": each.topic, "count": each.count, "is_more": each.is_more, "oldest_at": each.oldest_at}
            for each in seen.backlogs
        ],
        "open_run": run and {"id": run.pk, "handler": run.handler.name, "status": run.status},
    }


def _pending(seen: Overview) -> str:
    count, is_more = seen.pending
    return f"{count:,}{'+' if is_more else ''}" if count else ""
