from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from execution.models import WorkerTask
from jimsite.arguments import task_called, tasks
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused

TASKS = Target("ID", "id of a job or step, or number of its activity, as shown by “queue”", task_called)


class Command(VerbsCommand):
    help = (
        "Change the order of queued tasks: jobs and steps that have not started yet. To list tasks, use "
        "“queue”. To cancel jobs or executions, use “cancel”."
    )

    def verbs(self) -> Iterator[Verb]:
        yield from self.operations_of(WorkerTask, TASKS, but=["cancel"])
        yield Verb(
            "reorder",
            "Move tasks to the front of the queue within their pool and priority, in the given order.",
            self.reorder,
            _ask_order,
        )

    def reorder(self, options: dict[str, Any]) -> None:
        keys = [task_called(text).key for text in options["targets"]]
        moved = WorkerTask.objects.reorder(keys, initiator=self.by, now=self.now)
        if not moved:
            raise Refused("Nothing was changed: all of these tasks have already started.")
        self.tell(
            {"moved": moved}, lambda: self.say(f"Moved {tasks(moved)} to the front, in the given order.")
        )


def _ask_order(parser: CommandParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar=TASKS.metavar, help=f"{TASKS.help}; in the order they should run"
    )
