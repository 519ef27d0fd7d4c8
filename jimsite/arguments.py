"""Command-line arguments that several commands share, and functions that parse them."""

from __future__ import annotations

import argparse
import re
import uuid
from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from activities.models import Activity
from execution.models import Execution, Job, WorkerTask
from schedules.models import Backfill, Overlap, Refused, Schedule
from schedules.placeholders import hint
from schedules.spec.intervals import seconds_from
from schedules.spec.moments import bound_of, clock_reading
from schedules.spec.wording import SpecError, counted
from text.clean import clean_text
from text.numbers import whole_number
from workflows.models import Topic

MOST = 10_000
_ID = re.compile(r"#?([0-9]{1,18})")


def schedule_name(parser: CommandParser) -> None:
    parser.add_argument("schedule", metavar="NAME", help="name or id of the schedule")


def named_schedules(parser: CommandParser, *, every: str) -> None:
    parser.add_argument("schedules", nargs="*", metavar="NAME", help="names or ids of schedules")
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        help="schedules with this tag; can be repeated to require several tags",
    )
    parser.add_argument("--all", action="store_true", help=every)


def at_most(parser: CommandParser, usual: int) -> None:
    parser.add_argument(
        "--limit",
        type=number,
        default=usual,
        metavar="N",
        help=f"show at most N rows, 1 to {MOST:,} (default: {usual})",
    )


def overlap(parser: CommandParser, usual: str) -> None:
    parser.add_argument(
        "--overlap",
        choices=Overlap.values,
        default="",
        help=f"what to do if an execution is already running (default: {usual})",
    )


def number(text: str) -> int:
    found = whole_number(text, digits=5, least=1, most=MOST)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST:,}, not {text!r}")
    return found


def length(text: str) -> timedelta:
    bare = whole_number(text)
    try:
        return timedelta(seconds=seconds_from("", text if bare is None else bare))
    except (SpecError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be a duration such as 90s, 15m or 1h30m, not {text!r}"
        ) from None


def instant(field: str, text: str, schedule: Schedule, *, now: datetime, at: time = time(0, 0)) -> datetime:
    """Parse a time, by default in the schedule's time zone. A date alone means the time `at` on that day."""
    return bound_of(field, _dated(text, schedule, now), schedule.zone.key, "cron", at=at)


def wall_or_instant(field: str, text: str, schedule: Schedule, *, now: datetime) -> datetime:
    """Parse a time. If it has no offset, return a naive datetime.

    A local time can exist twice, or not at all, when the clocks change, so the caller decides what it means.
    """
    return clock_reading(field, _dated(text, schedule, now))


def _dated(text: str, schedule: Schedule, now: datetime) -> str:
    if not re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", text.strip()):
        return text.strip()
    return f"{now.astimezone(schedule.zone):%Y-%m-%d}T{'0' * (text.strip().index(':') < 2)}{text.strip()}"


def chosen_schedules(options: dict[str, Any]) -> tuple[list[Schedule], list[Schedule]]:
    """Return the schedules given by name and, separately, the other schedules that have all given tags."""
    names, tags = options["schedules"], options["tag"]
    if not names and not tags:
        raise Refused("Give the name of at least one schedule, or use --tag or --all.")
    named = list(dict.fromkeys(Schedule.objects.called(name) for name in names))
    tagged = list(Schedule.objects.chosen_by(tags).order_by("name")) if tags else []
    return named, [schedule for schedule in tagged if schedule not in named]


def in_words(tags: Sequence[str]) -> str:
    return f"{'tags' if len(tags) > 1 else 'tag'} {' and '.join(tags)}"


def execution_called(text: str) -> Execution:
    found = _ID.fullmatch(text.strip())
    execution = Execution.objects.filter(pk=int(found[1])).first() if found else None
    if execution is None:
        raise Refused(
            f"Execution “{text}” was not found. Use “executions” to list executions and their numbers."
        )
    return execution


def run_called(text: str) -> Execution | Job:
    """Find an execution by its number, or a single job by its id."""
    key = uuid_of(text)
    if key is None:
        return execution_called(text)
    job = Job.find(key)
    if job is None:
        raise Refused(f"Job {key} was not found. Use “queue” to list jobs that have not ended.")
    return job


def activity_called(text: str) -> Activity:
    """Find the activity with this number, or the last attempt of the job or step with this id."""
    key, found = uuid_of(text), _ID.fullmatch(text.strip())
    if key is not None:
        activity = Activity.objects.filter(task_key=key).order_by("-attempt").first()
    else:
        activity = Activity.objects.filter(pk=int(found[1])).first() if found else None
    if activity is None:
        raise Refused(
            f"Activity “{text}” was not found. Use “execution ID” to see the activity of each step."
        )
    return activity


def task_called(text: str) -> WorkerTask:
    """Find a task by its id or by the number of its activity. Tasks that have ended are not found."""
    key, found = uuid_of(text), _ID.fullmatch(text.strip())
    rows = WorkerTask.objects.select_related("execution").defer("execution__plan")
    if key is not None:
        rows = rows.filter(activity__task_key=key)
    else:
        rows = rows.filter(activity=int(found[1])) if found else rows.none()
    task = rows.first()
    if task is None:
        raise Refused(f"Task “{text}” was not found. Use “queue” to list tasks that have not ended.")
    return task


def backfill_called(text: str) -> Backfill:
    found = _ID.fullmatch(text.strip())
    rows = Backfill.objects.select_related("schedule")
    backfill = rows.filter(pk=int(found[1])).first() if found else None
    if backfill is None:
        raise Refused(
            f"Backfill “{text}” was not found. Use “describe NAME” to list the backfills of a schedule."
        )
    return backfill


def topic_called(text: str) -> Topic:
    rows, none_yet = Topic.objects.all(), "“syncworkflows” creates the topics defined in the code"
    topic: Topic = called(rows, text, by="slug", kind="topic", none_yet=none_yet)
    return topic


def called(rows: QuerySet[Any], text: str, *, by: str, kind: str, none_yet: str) -> Any:
    """Find a row by name, ignoring case. If none is found, raise Refused with a suggestion."""
    wanted = clean_text(text.strip())
    found = rows.filter(**{f"{by}__iexact": wanted}).first()
    if found is None:
        known = list(rows.order_by(by).values_list(by, flat=True)[:MOST])
        raise Refused(
            f"{kind.capitalize()} “{wanted}” does not exist; {hint(wanted, known, '' if known else none_yet)}"
        )
    return found


def uuid_of(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text.strip())
    except ValueError:
        return None


def tasks(count: int) -> str:
    return counted(count, "task")
