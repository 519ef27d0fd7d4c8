from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandParser

from execution.models import Execution, Job, WorkerTask
from execution.models.adhoc import first_wrong, named
from files import given_files, strict_json, yaml_lines
from jimsite.arguments import length
from jimsite.following import FollowingCommand
from jimsite.terminal import complaints
from jimsite.verbs import Verb, VerbsCommand
from schedules.models import Refused
from schedules.spec.moments import bound_of
from schedules.spec.wording import counted

MOST_BYTES = 5 * 1024 * 1024
# Fields of a job that can be given as options.
OPTIONS = (
    *("template", "step_type", "config", "name", "pool", "priority", "max_retries", "timeout_seconds"),
    *("available_at", "idempotency_key", "dedup_key"),
)
GROUP = ("name", "steps", "mode", "on_failure", "timeout_seconds")


class Command(VerbsCommand, FollowingCommand):
    help = (
        "Queue work that does not belong to a schedule: one job, several jobs, or a group of steps. Use "
        "“queue” to list waiting jobs, and “cancel” or “retry” with the id of a job."
    )

    def verbs(self) -> Iterator[Verb]:
        yield Verb("run", "Queue one job of a step type, or from a template.", self.queue_one, _ask_job)
        yield Verb(
            "batch",
            "Queue several jobs from a file. If one is invalid, none is queued.",
            self.queue_batch,
            _ask_jobs,
        )
        yield Verb(
            "group",
            "Start a group of steps from a file: one by one, in parallel, or in the order of their indexes.",
            self.start_group,
            self._ask_group,
        )

    def queue_one(self, options: dict[str, Any]) -> None:
        asked = {name: options[name] for name in OPTIONS if options[name] is not None}
        if "config" in asked:
            asked["config"] = _config(asked["config"])
        if "available_at" in asked:
            asked["available_at"] = _moment("--at", asked["available_at"])
        [key] = WorkerTask.objects.enqueue([named(asked)], initiator=self.by, now=self.now)
        job = Job.find(key)
        assert job is not None
        facts = {"job": key, "state": job.state, "activity": job.activity.pk}
        self.tell(facts, lambda: self.say(_result(job)))

    def queue_batch(self, options: dict[str, Any]) -> None:
        file = options["file"]
        jobs = [_timed(each, number) for number, each in enumerate(_jobs(_read(file), file), start=1)]
        by, now = self.by, self.now
        try:
            keys = WorkerTask.objects.enqueue(jobs, initiator=by, now=now)
        except ValidationError as error:
            number, why = first_wrong(jobs, initiator=by, now=now) or (0, error)
            raise Refused(f"{file}: job {number + 1}: {complaints(why)}") from None
        self.tell({"jobs": keys}, lambda: self.say(f"Queued {counted(len(keys), 'job')}."))

    def start_group(self, options: dict[str, Any]) -> None:
        group = _group(_read(options["file"]), options["file"])
        started = Execution.objects.submit(**group, initiator=self.by, now=self.now)
        if options["wait"]:
            self.follow(started, options)
            return
        facts = {"execution": started.pk, "state": started.state}
        self.tell(facts, lambda: self.say(f"Started “{started}”: execution {started.pk}."))

    def _ask_group(self, parser: CommandParser) -> None:
        _ask_file(parser, f"with the fields {', '.join(GROUP)}")
        self.ask_to_wait(parser)


def _ask_job(parser: CommandParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("step_type", nargs="?", metavar="TYPE", help="step type, such as http or python")
    what.add_argument(
        "--template", metavar="TEMPLATE", help="template for the settings that are not given here"
    )
    parser.add_argument(
        "--config", metavar="JSON", help="settings of the step type, as JSON; - reads standard input"
    )
    parser.add_argument("--name", metavar="TEXT", help="name of the job (default: its type or template)")
    parser.add_argument("--pool", metavar="POOL", help="pool to queue the job in (default: default)")
    parser.add_argument("--priority", type=int, metavar="N", help="higher priorities run first (default: 0)")
    parser.add_argument("--max-retries", type=int, metavar="N", help="number of retries after a failure")
    parser.add_argument(
        "--timeout",
        dest="timeout_seconds",
        type=_seconds,
        metavar="DURATION",
        help="longest run time of each attempt, such as 90s or 15m",
    )
    parser.add_argument(
        "--at", dest="available_at", metavar="TIME", help="earliest start, in UTC: 2026-12-01T09:00"
    )
    parser.add_argument(
        "--key",
        dest="idempotency_key",
        metavar="KEY",
        help="idempotency key: the same key never queues a second job",
    )
    parser.add_argument(
        "--dedup-key",
        metavar="KEY",
        help="skip the job while another with the same key is waiting or running",
    )


def _ask_jobs(parser: CommandParser) -> None:
    _ask_file(parser, "a list of jobs, each with fields as in the API")


def _ask_file(parser: CommandParser, what: str) -> None:
    parser.add_argument("file", metavar="FILE", help=f"YAML or JSON, {what}; - reads standard input")


def _seconds(text: str) -> int:
    return math.ceil(length(text).total_seconds())


def _config(text: str) -> Any:
    if text == given_files.STANDARD_INPUT:
        text = _text(text, "--config: standard input")
    try:
        return strict_json.loads(text)
    except ValueError as error:
        raise Refused(f"--config: {error}.") from None


def _moment(field: str, text: object) -> datetime:
    return bound_of(field, text, "UTC", "cron", at=time(0, 0))


def _read(file: str) -> Any:
    try:
        return yaml_lines.read(_text(file, given_files.name_of(file))).plain()
    except yaml_lines.Unreadable as error:
        raise Refused(f"{given_files.name_of(file)}: {error}.") from None


def _text(file: str, name: str) -> str:
    try:
        return given_files.read(file, most=MOST_BYTES)
    except given_files.Unfit as error:
        raise Refused(f"{name} {error}.") from None


def _jobs(data: Any, file: str) -> Sequence[Any]:
    """Return the jobs from a list, or from an object with the field `jobs`, as in the API."""
    found = data.get("jobs") if isinstance(data, Mapping) and set(data) == {"jobs"} else data
    if not isinstance(found, list) or not found:
        raise Refused(f"{given_files.name_of(file)}: expected a list of jobs.")
    return found


def _timed(job: Any, number: int) -> Any:
    """Return the job with `available_at` parsed; a job without a name is named after its step type.

    A value that is not an object is returned unchanged: the models refuse it with a clear message.
    """
    if not isinstance(job, Mapping):
        return job
    if job.get("available_at") is not None:
        job = {**job, "available_at": _moment(f"job {number}: available_at", job["available_at"])}
    return named(job)


def _group(data: Any, file: str) -> dict[str, Any]:
    name = given_files.name_of(file)
    if not isinstance(data, Mapping):
        raise Refused(f"{name}: expected an object with the fields {', '.join(GROUP)}.")
    if unknown := [each for each in data if each not in GROUP]:
        raise Refused(f"{name}: unknown field “{unknown[0]}”; a group can have: {', '.join(GROUP)}.")
    return {"name": "", "steps": [], **data}


def _result(job: Job) -> str:
    name = job.activity.target_name
    if job.task is None:
        return f"“{name}” was not queued: {job.activity.message or job.state}"
    return f"Queued “{name}”: job {job.key}."
