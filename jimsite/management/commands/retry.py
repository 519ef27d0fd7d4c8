from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from execution.models import Execution, Job
from jimsite.arguments import overlap, run_called
from jimsite.following import FollowingCommand
from schedules.models import Refused


class Command(FollowingCommand):
    help = (
        "Retry an execution, for the same time: what succeeded is kept, the rest runs again. Or a job that "
        "failed or was cancelled: one more attempt."
    )

    def ask(self, parser: CommandParser) -> None:
        parser.add_argument("run", metavar="ID", help="an execution's number or a job's id")
        parser.add_argument("--whole", action="store_true", help="of an execution: all of it once more")
        overlap(parser, "as the schedule says")
        parser.add_argument("--key", default="", help="the same key again asks for the same retry")
        self.ask_to_wait(parser)

    def run(self, options: dict[str, Any]) -> None:
        target = run_called(options["run"])
        if isinstance(target, Job):
            self._retry_job(target, options)
        else:
            self._retry_execution(target, options)

    def _retry_job(self, job: Job, options: dict[str, Any]) -> None:
        if options["wait"]:
            raise Refused(f"A job is watched by “activity {job.key} --follow”: leave out --wait.")
        task = job.retry(initiator=self.by, now=self.now)
        facts = {"job": job.key, "attempt": task.attempt, "activity": task.activity_id}
        told = f"“{task.name}” is queued again, as attempt {task.attempt} (activity {task.activity_id})."
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
        waits = f"The retry of “{before}” waits for its turn, behind what is running."
        told = f"“{before}” is retried: execution {started.pk}." if started else waits
        self.tell(facts, lambda: self.say(told))
