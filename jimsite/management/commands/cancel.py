from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.core.management.base import CommandParser

from execution.models import Execution, Job, WorkerTask
from execution.operations import clean_up_words
from jimsite.arguments import execution_called, run_called, tasks
from jimsite.terminal import JimCommand
from schedules.models import Refused, Schedule


class Command(JimCommand):
    help = (
        "Cancel executions and jobs. Running steps are asked to stop; of the remaining steps, only clean-up "
        "steps (run_if: always) still run. With --schedule, cancel all running executions of a schedule; its "
        "future runs are not affected."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="*", metavar="ID", help="number of an execution or id of a job")
        parser.add_argument(
            "--schedule", default="", metavar="NAME", help="cancel all running executions of this schedule"
        )
        parser.add_argument("--reason", default="", help="reason, shown with the execution")
        parser.add_argument(
            "--terminate", action="store_true", help="end executions at once, without clean-up"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="show what would be cancelled without cancelling it"
        )

    def run(self, options: dict[str, Any]) -> None:
        targets = self._targets(options)
        endings = [(target, _ending(target, options["terminate"])) for target in targets]
        done = [(target, ending, self._cancel(target, options)) for target, ending in endings]
        facts = [_facts(target, ending, is_done) for target, ending, is_done in done]
        self.tell({"dry_run": options["dry_run"], "cancelled": facts}, lambda: self._show(done, options))

    def _targets(self, options: dict[str, Any]) -> Sequence[Execution | Job]:
        if bool(options["ids"]) == bool(options["schedule"]):
            raise Refused("Give the ids of executions or jobs, or use --schedule NAME, but not both.")
        if options["schedule"]:
            schedule = Schedule.objects.called(options["schedule"])
            running = list(Execution.objects.in_progress().filter(schedule=schedule).order_by("pk"))
            if not running:
                raise Refused(f"“{schedule}” has no running executions.")
            return running
        called = execution_called if options["terminate"] else run_called
        return [called(text) for text in dict.fromkeys(options["ids"])]

    def _cancel(self, target: Execution | Job, options: dict[str, Any]) -> bool:
        """Cancel or terminate the target, unless this is a dry run; return False if it has already ended."""
        if options["dry_run"]:
            return _is_open(target)
        if options["terminate"] and isinstance(target, Execution):
            return target.terminate(initiator=self.by, now=self.now, reason=options["reason"])
        return target.cancel(initiator=self.by, now=self.now, reason=options["reason"])

    def _show(self, done: Sequence[tuple[Execution | Job, Ending, bool]], options: dict[str, Any]) -> None:
        verb = "would be" if options["dry_run"] else "is being"
        for target, ending, is_done in done:
            what = (
                f"{verb} {'terminated' if options['terminate'] else 'cancelled'}, with {tasks(ending.tasks)}"
            )
            what += f"; {clean_up_words(ending.clean_up)}" if ending.clean_up else ""
            self.say(f"{_name(target)} {what if is_done else 'has already ended'}.")


class Ending(NamedTuple):
    """The number of tasks that end, and the names of the clean-up tasks that still run."""

    tasks: int
    clean_up: list[str]


def _ending(target: Execution | Job, terminate: bool) -> Ending:
    if isinstance(target, Job):
        return Ending(int(target.task is not None), [])
    kept = [] if terminate else [name for _, name in target.clean_up_tasks()]
    return Ending(WorkerTask.objects.filter(execution=target).count() - len(kept), kept)


def _is_open(target: Execution | Job) -> bool:
    if isinstance(target, Job):
        return target.task is not None
    return target.status == Execution.Status.IN_PROGRESS


def _name(target: Execution | Job) -> str:
    return f"“{target.activity.target_name}” ({target.key})" if isinstance(target, Job) else f"“{target}”"


def _facts(target: Execution | Job, ending: Ending, is_done: bool) -> dict[str, Any]:
    known = {"job": target.key} if isinstance(target, Job) else {"execution": target.pk}
    return known | {"tasks": ending.tasks, "clean_up": ending.clean_up, "is_cancelled": is_done}
