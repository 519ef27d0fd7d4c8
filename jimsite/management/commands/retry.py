from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from execution.models import Execution, Job
from jimsite.arguments import overlap, run_called
from jimsite.following import FollowingCommand
from schedules.models import Refused


class Command(FollowingCommand):
    help = (
        "Retry an execution for the same scheduled time, or a job that failed or was cancelled. In an "
        "execution, steps that succeeded are reused, except for steps that always run or that run only "
        "after a failure; the other steps run again."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="ID", help="number of an execution or id of a job")
        parser.add_argument("--whole", action="store_true", help="run all steps of the execution again")
        overlap(parser, "the policy of the schedule")
        parser.add_argument(
            "--key", default="", help="idempotency key: the same key never starts a second retry"
        )
        self.ask_to_wait(parser)

    def run(self, options: dict[str, Any]) -> None:
        target = run_called(options["run"])
        if isinstance(target, Job):
            self._retry_job(target, options)
        else:
            self._retry_execution(target, options)

    def _retry_job(self, job: Job, options: dict[str, Any]) -> None:
        if options["wait"]:
            raise Refused(f"--wait is not available for jobs. Use “activity {job.key} --follow” instead.")
        task = job.retry(initiator=self.by, now=self.now)
        facts = {"job": job.key, "attempt": task.attempt, "activity": task.activity_id}
        told = f"Queued “{task.name}” again as attempt {task.attempt} (activity {task.activity_id})."
        self.tell(facts, lambda: self.say(told))

    def _retry_execution(self, before: Execution, options: dict[str, Any]) -> None:
        started = before.retry(
            initiator=self.by,
            now=self.now,
            whole=options["whole"],
            key=options["key"],
            overlap=options["overlap"],
        )
        if options["wait"] and started is not None:
            self.follow(started, options)
            return
        facts = {"retry_of": before.pk, "execution": started.pk if started else None}
        waits = f"The retry of “{before}” waits for a running execution to end."
        told = f"Retrying “{before}”: execution {started.pk}." if started else waits
        self.tell(facts, lambda: self.say(told))
