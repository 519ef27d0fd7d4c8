from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from jimsite.arguments import called
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import SharedCalendar

NONE_YET = "“importschedules” creates them from a file"
CALENDARS = Target(
    "CALENDAR",
    "name of the calendar",
    partial(called, SharedCalendar.objects.all(), by="name", kind="calendar", none_yet=NONE_YET),
)


class Command(VerbsCommand):
    help = "List and delete shared calendars. To create or change calendars, use “importschedules”."

    def verbs(self) -> Iterator[Verb]:
        yield Verb("list", "List the shared calendars.", self.list_all)
        yield from self.operations_of(SharedCalendar, CALENDARS)

    def list_all(self, options: dict[str, Any]) -> None:
        rows = list(SharedCalendar.objects.order_by("name"))
        facts = [{"name": row.name, "description": row.description, "excluded": row.excluded} for row in rows]
        self.tell({"calendars": facts}, lambda: self._show(rows))

    def _show(self, rows: Sequence[SharedCalendar]) -> None:
        if not rows:
            self.say(f"No calendars yet: {NONE_YET}.")
            return
        self.columns(
            {
                "Calendar": [row.name for row in rows],
                "Rules": [str(len(row.excluded)) for row in rows],
                "Description": [row.description for row in rows],
            }
        )
