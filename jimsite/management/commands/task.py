from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandParser

from execution.models import WorkerTask
from jimsite.arguments import task_called, tasks
from jimsite.verbs import Target, Verb, VerbsCommand
from schedules.models import Refused

TASKS = Target("ID", "a job's or step's id, or the number of its activity: “queue” shows both", task_called)


class Command(VerbsCommand):
    help = (
        "Change the order of the queue: which task goes first, which last. Tasks are the steps of executions "
        "and single jobs that have not started yet. “cancel” ends them, “queue” lists them."
    )

    def verbs(self) -> Iterator[Verb]:
        yield from self.operations_of(WorkerTask, TASKS, but=["cancel"])
        yield Verb(
            "reorder",
            "These go first, in this order, among what waits in their pool with the same priority.",
            self.reorder,
            _ask_order,
        )

    def reorder(self, options: dict[str, Any]) -> None:
        keys = [task_called(text).key for text in options["targets"]]
        moved = WorkerTask.objects.reorder(keys, initiator=self.by, now=self.now)
        if not moved:
            raise Refused("All of them have been started meanwhile: nothing was changed.")
        told = f"{tasks(moved)} {'goes' if moved == 1 else 'go'} first, in this order."
        self.tell({"moved": moved}, lambda: self.say(told))


def _ask_order(parser: CommandParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar=TASKS.metavar, help=f"{TASKS.help}; the first one first"
    )
