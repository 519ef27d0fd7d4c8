from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from database import clock
from execution.models import Limit
from execution.queue.occupancy import Occupancy, Used
from jimsite.arguments import called, tasks
from jimsite.verbs import Target, Verb, VerbsCommand

LIMITS = Target(
    "KEY",
    "such as global, pool:default or type:sql",
    partial(called, Limit.objects.all(), by="key", kind="limit", none_yet="“limit set” creates one"),
)
NONE_YET = "No limits yet: queued tasks start as soon as a worker is free."


class Command(VerbsCommand):
    help = "List, set and delete limits: how many tasks with the same key can run at once on all workers."

    def verbs(self) -> Iterator[Verb]:
        yield Verb(
            "list", "List the limits, with the number of running and waiting tasks of each.", self.list_all
        )
        yield Verb(
            "set",
            "Create or change a limit: how many tasks with this key can run at once. Running tasks continue.",
            self.put,
            _ask_size,
        )
        yield from self.operations_of(Limit, LIMITS)

    def list_all(self, options: dict[str, Any]) -> None:
        used = Occupancy.at(clock.now()).limits
        self.tell({"limits": [_facts(each) for each in used]}, lambda: self._show(used))

    def _show(self, used: Sequence[Used]) -> None:
        if not used:
            self.say(NONE_YET)
            return
        columns = {
            "Key": [each.limit.key for each in used],
            "Size": [str(each.limit.size) for each in used],
            "Running": [str(each.running) for each in used],
            "Waiting": [f"{each.waiting:,}{'' if each.is_counted else '+'}" for each in used],
            "Note": [each.limit.note for each in used],
        }
        self.columns(columns)

    def put(self, options: dict[str, Any]) -> None:
        limit = Limit.objects.put(
            options["key"], options["size"], initiator=self.by, now=self.now, note=options["note"]
        )
        facts = {"key": limit.key, "size": limit.size, "note": limit.note}
        self.tell(facts, lambda: self.say(f"“{limit}” is limited to {tasks(limit.size)} at once."))


def _ask_size(parser: CommandParser) -> None:
    parser.add_argument("key", metavar=LIMITS.metavar, help=LIMITS.help)
    parser.add_argument("size", metavar="SIZE", help="how many tasks can run at once; if 0, none can start")
    parser.add_argument("--note", metavar="TEXT", help="reason; if not given, the stored note is kept")


def _facts(used: Used) -> dict[str, Any]:
    return {
        "key": used.limit.key,
        "size": used.limit.size,
        "running": used.running,
        "waiting": used.waiting,
        "note": used.limit.note,
    }
