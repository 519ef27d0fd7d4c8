from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from rich.text import Text

from execution.history import usual_duration_of
from jimsite.arguments import execution_called
from jimsite.following import FollowingCommand
from jimsite.progress import Snapshot
from jimsite.terminal import state


class Command(FollowingCommand):
    help = (
        "Show an execution with its steps. With --wait, follow it until it ends, and exit with a code for "
        "the outcome."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("execution", metavar="ID", help="number of the execution")
        self.ask_to_wait(parser)

    def run(self, options: dict[str, Any]) -> None:
        execution = execution_called(options["execution"])
        if options["wait"]:
            self.follow(execution, options)
            return
        progress = Snapshot.of(execution.pk, usual=usual_duration_of(execution.schedule_id), now=self.now)
        self.tell(progress.as_json(), lambda: self._show(progress))

    def _show(self, progress: Snapshot) -> None:
        self.console.print(
            Text(f"{progress.execution}  ", style="bold") + state(progress.execution.state), soft_wrap=True
        )
        self.facts(progress.facts())
        self.console.print()
        self.console.print(progress.table(width=self.console.width))
        self.say(progress.sentence())
