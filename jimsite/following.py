"""Follow an execution in a terminal until it ends; Ctrl-C leaves it running or cancels it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from django.core.management.base import CommandError, CommandParser
from django.db import connection
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from database import clock
from database.statements import AWAY
from execution.history import usual_duration_of
from execution.models import Execution
from operations.initiator import Initiator
from schedules.models import Occurrence

from .arguments import length
from .progress import Snapshot, took
from .terminal import CANCELLED, FAILED, INTERRUPTED, NOT_NOW, JimCommand, printable, state

LOOK_SECONDS = 0.5
AWAY_SECONDS = 2.0
LEAST_STEPS_SHOWN = 5
LINES_AROUND_STEPS = 5

T = TypeVar("T")

EXIT_CODES = {
    FAILED: "the execution failed",
    NOT_NOW: "blocked by another execution, or timed out while waiting",
    CANCELLED: "the execution was cancelled",
    INTERRUPTED: "interrupted while waiting",
}


class FollowingCommand(JimCommand):
    """A command that can wait for an execution to end, and then exits with a code for its outcome."""

    exit_codes = EXIT_CODES

    def ask_to_wait(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--wait",
            action="store_true",
            help="wait until the execution ends, and show its progress",
        )
        parser.add_argument(
            "--timeout",
            type=length,
            metavar="DURATION",
            help="with --wait, stop waiting after this time: 90s, 15m, 1h30m",
        )
        parser.add_argument(
            "--cancel-on-interrupt",
            action="store_true",
            help="with --wait, cancel the execution on Ctrl-C or TERM without asking",
        )

    def follow(self, execution: Execution, options: dict[str, Any]) -> None:
        """Wait until the execution ends; raise CommandError unless it succeeded."""
        watch = self._watch(options)
        progress = watch.until_over(execution.pk, usual_duration_of(execution.schedule_id))
        self.tell(progress.as_json(), lambda: self._show_end(progress))
        if progress.exit_code:
            raise CommandError(printable(progress.sentence()), returncode=progress.exit_code)

    def await_turn(self, occurrence: Occurrence, options: dict[str, Any]) -> Execution:
        """Wait until the occurrence starts an execution; raise CommandError if it will not start one."""
        return self._watch(options).until_started(occurrence)

    def _watch(self, options: dict[str, Any]) -> Watch:
        quiet = Console(stderr=True, highlight=False, markup=False) if self.is_json else self.console
        patience: timedelta | None = options["timeout"]
        deadline = time.monotonic() + patience.total_seconds() if patience else None
        return Watch(quiet, self.by, deadline, cancels=options["cancel_on_interrupt"])

    def _show_end(self, progress: Snapshot) -> None:
        if self.console.is_terminal:
            self.console.print(progress.table(width=self.console.width))
        if not progress.exit_code:
            self.say(progress.sentence(), style="green")


@dataclass
class Watch:
    console: Console
    by: Initiator
    deadline: float | None
    cancels: bool
    _told: dict[int, str] = field(default_factory=dict)

    def until_started(self, occurrence: Occurrence) -> Execution:
        self.console.print(Text("Waiting for earlier executions to end."))
        with heeding_term():
            while True:
                execution = self._read(lambda: Execution.objects.filter(occurrence=occurrence).first())
                if execution is not None:
                    return execution
                self._refuse_settled(occurrence)
                self._pause("the execution has not started yet")

    def _refuse_settled(self, occurrence: Occurrence) -> None:
        fate = self._read(lambda: Occurrence.objects.filter(pk=occurrence.pk).first())
        if fate is None or fate.status not in (Occurrence.Status.PENDING, Occurrence.Status.STARTED):
            why = f"{fate.status}: {fate.reason}" if fate else "the record of this run was deleted"
            raise CommandError(f"The execution was not started: {why}.", returncode=NOT_NOW)

    def until_over(self, execution_id: int, usual: timedelta | None) -> Snapshot:
        with heeding_term():
            while True:
                try:
                    return self._until_over(execution_id, usual)
                except KeyboardInterrupt:
                    # The interrupt may have come during a query, so do not use this connection again.
                    connection.close()
                    self._interrupted(execution_id)

    def _until_over(self, execution_id: int, usual: timedelta | None) -> Snapshot:
        live = Live(console=self.console, auto_refresh=False, transient=True)
        with live if self.console.is_terminal else nullcontext():
            while True:
                progress = self._read(lambda: Snapshot.of(execution_id, usual=usual, now=clock.now()))
                if not self.console.is_terminal:
                    self._tell_news(progress)
                if progress.is_over:
                    return progress
                live.update(self._picture(progress), refresh=self.console.is_terminal)
                self._pause(f"execution {execution_id} is still running")

    def _picture(self, progress: Snapshot) -> Group:
        title = Text(f"{progress.execution}  ", style="bold") + state(progress.execution.state)
        room = max(self.console.height - LINES_AROUND_STEPS, LEAST_STEPS_SHOWN)
        steps = progress.table(width=self.console.width, most=room)
        keys = "cancel" if self.cancels else "leave or cancel"
        return Group(title, steps, Text(f"{progress.sentence()}. Ctrl-C: {keys}."))

    def _tell_news(self, progress: Snapshot) -> None:
        """Print a line for each step that has begun or ended since the last call."""
        for step in progress.steps:
            news = f"{step.status} {step.attempt}"
            if step.status == "pending" or self._told.get(step.line or 0) == news:
                continue
            self._told[step.line or 0] = news
            words = printable(step.error or step.message) if step.is_final else ""
            attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
            length = (
                f" ({took(step, now=progress.now)}{attempt})" if step.is_final and step.executed_at else ""
            )
            line = Text(f"{progress.now:%H:%M:%S}  ") + state(step.status)
            line.append(f"  {printable(step.target_name)}{length}" + (f": {words}" if words else ""))
            self.console.print(line, soft_wrap=True)

    def _interrupted(self, execution_id: int) -> None:
        """Ask the user whether to cancel the execution, leave it running, or keep waiting.

        If `self.cancels` is true, cancel the execution without asking. If the user leaves it running, raise
        CommandError.
        """
        choice = "c" if self.cancels else self._choice(execution_id)
        if choice == "w":
            return
        if choice == "l":
            raise CommandError(
                f"Execution {execution_id} is still running. Use “execution {execution_id} --wait” to follow "
                f"it, or “cancel {execution_id}” to cancel it.",
                returncode=INTERRUPTED,
            )
        Execution.objects.get(pk=execution_id).cancel(
            initiator=self.by, now=clock.now(), reason="Cancelled with Ctrl-C or TERM in a terminal."
        )
        self.console.print(Text(f"Execution {execution_id} is being cancelled."))
        self.cancels = False  # a second Ctrl-C leaves it

    def _choice(self, execution_id: int) -> str:
        """Ask the user; return “c” to cancel, “l” to leave or “w” to wait. Without a terminal, return “l”."""
        if not (sys.stdin.isatty() and self.console.is_terminal):
            return "l"
        question = (
            f"Execution {execution_id} is running. Cancel it (c), leave it running (l), or keep waiting (w)? "
        )
        try:
            while (answer := input(question).strip().lower()[:1]) not in ("c", "l", "w"):
                pass
        except (EOFError, KeyboardInterrupt):
            return "l"
        return answer

    def _read(self, look: Callable[[], T]) -> T:
        """Read from the database, and try again while it cannot be reached."""
        while True:
            try:
                return look()
            except AWAY as error:
                self.console.print(
                    Text(f"The database cannot be reached ({printable(str(error))}). Trying again.")
                )
                connection.close()
                self._pause("the database cannot be reached", AWAY_SECONDS)

    def _pause(self, what: str, seconds: float = LOOK_SECONDS) -> None:
        if self.deadline is not None:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise CommandError(f"Timed out: {what}.", returncode=NOT_NOW)
            seconds = min(seconds, left)
        time.sleep(seconds)


@contextmanager
def heeding_term() -> Iterator[None]:
    """Treat the signal TERM like Ctrl-C, because background jobs of a shell ignore Ctrl-C itself."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
