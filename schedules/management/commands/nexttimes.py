"""The command `nexttimes`."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import IO, Any, NoReturn, cast

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from rich.console import Console
from rich.table import Table
from rich.text import Text

from database import clock
from files import given_files, strict_json, yaml_lines
from files.given_files import STANDARD_INPUT
from schedules.code_files import MOST_BYTES
from schedules.management.usable_database import usable_database
from schedules.models import Refused, Schedule
from schedules.models.occurrence import named_time
from schedules.models.shared_calendar import names_in
from schedules.spec import Spec, SpecError
from schedules.spec.explanation import Upcoming
from schedules.spec.moments import bound_of
from schedules.spec.wording import shown
from text.clean import REPLACEMENT, clean_json
from text.numbers import whole_number
from text.words import distance

MOST = 1_000
LONGEST_HEADER = 20


@dataclass(frozen=True)
class Subject:
    """The spec whose times are shown, with its name and notes.

    `seed` is the seed of the jitter. By default, the times after `since` are shown. `skips` maps each time
    that is marked to be skipped to the name of the person who asked for it.
    """

    spec: Spec
    name: str
    seed: str
    now: datetime
    notes: list[str]
    since: datetime
    skips: Mapping[str, str] = field(default_factory=dict)


class Command(BaseCommand):
    help = (
        "Show when a schedule will run next. Name a stored schedule, or give a spec in a file or on standard "
        "input. A given spec needs no database. The spec can be JSON or YAML, and can stand alone or be "
        'written as {"name": …, "spec": …}, as in an export. If the spec uses shared calendars, add '
        '"calendars": {NAME: […]}.'
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "schedule",
            nargs="?",
            default="",
            metavar="NAME-OR-ID",
            help="the name or id of a stored schedule, or - for a spec on standard input",
        )
        parser.add_argument("--file", default="", metavar="FILE", help="read a spec from this file")
        parser.add_argument(
            "--after",
            default="",
            metavar="TIME",
            help="show the runs after this time instead of after now, such as 2026-12-01T09:00 (in the "
            "schedule's time zone) or 2026-12-01T09:00:00Z",
        )
        parser.add_argument(
            "--count",
            default="10",
            metavar="N",
            help=f"the number of runs to show, from 1 to {MOST:,} (default: 10)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = _count(options["count"])
            with usable_database(is_needed=options["schedule"] not in ("", "-")):
                subject = _subject(options["schedule"], options["file"])
            after = _after(options["after"], subject)
            rows = subject.spec.upcoming(after, count, subject.seed)
        except SpecError as error:
            _refuse(str(error))
        if options["json"]:
            told = clean_json(_as_json(subject, rows))
            self.stdout.write(json.dumps(told, indent=2, ensure_ascii=False))
        else:
            terminal = cast("IO[str]", self.stdout)
            _show(Console(file=terminal, highlight=False, markup=False), subject, rows, after)


def _subject(schedule: str, file: str) -> Subject:
    if file and schedule:
        _refuse("Give the name of a schedule or --file FILE, but not both.")
    if file or schedule == STANDARD_INPUT:
        return _given(file or STANDARD_INPUT)
    if not schedule.strip():
        _refuse("Give the name of a schedule, or a spec with --file FILE or on standard input (-).")
    return _stored(_find(schedule))


def _given(file: str) -> Subject:
    label = given_files.name_of(file)
    try:
        return _written(_read(file, label))
    except SpecError as error:
        _refuse(f"{label}: {error}")


def _read(file: str, label: str) -> Any:
    try:
        text = given_files.read(file, most=MOST_BYTES)
    except given_files.Unfit as error:
        _refuse(f"{label} {error}.")
    if not text.strip():
        _refuse(f'{label} is empty: give a spec, such as {{"cron": ["0 9 * * mon-fri"]}}.')
    try:
        return _loaded(text)
    except ValueError as error:
        _refuse(f"{label}: {error}.")


def _loaded(text: str) -> Any:
    try:
        return strict_json.loads(text)
    except ValueError as not_json:
        try:
            return yaml_lines.read(text).plain()
        except yaml_lines.Unreadable as not_yaml:
            raise not_json if text.lstrip().startswith("{") else ValueError(str(not_yaml)) from None


def _written(data: Any) -> Subject:
    around = _around(data)
    name, calendars = around.get("name", ""), around.get("calendars", {})
    if not isinstance(name, str):
        raise SpecError("name", f"expected text, got {shown(name)}")
    if not isinstance(calendars, dict):
        raise SpecError("calendars", f"expected an object of names and lists, got {shown(calendars)}")
    for missing in [each for each in names_in(around["spec"]) if each not in calendars]:
        advice = 'write {"spec": …, "calendars": {' + json.dumps(missing, ensure_ascii=False) + ": […]}}"
        raise SpecError("exclude", f"the calendar {shown(missing)} is not given; {advice}")
    name = unicodedata.normalize("NFC", name.strip())
    spec, now = Spec.parse(around["spec"], calendars), timezone.now()
    notes = [*spec.notes, *_doubts(spec, now)]
    if spec.jitter and not name:
        notes.append(
            'Jitter depends on the name of the schedule: write {"name": …, "spec": …} to see the real times.'
        )
    return Subject(spec, name, name, now, notes, since=now)


def _around(data: Any) -> dict[str, Any]:
    """Return the input as a dict with the spec and, if the input has them, its name and calendars."""
    if isinstance(data, dict) and "schedules" in data:
        return _exported(data)
    return data if isinstance(data, dict) and "spec" in data else {"spec": data}


def _exported(data: dict[str, Any]) -> dict[str, Any]:
    """Return such a dict for an export by exportschedules; raise SpecError unless it has one schedule."""
    schedules, calendars = data["schedules"], data.get("calendars", [])
    if not isinstance(schedules, list) or len(schedules) != 1 or not isinstance(schedules[0], dict):
        raise SpecError(
            "schedules", "expected a list with one schedule, as in the output of “exportschedules NAME”"
        )
    known = [each for each in calendars if isinstance(each, dict)] if isinstance(calendars, list) else []
    excluded = {each["name"]: each.get("excluded") for each in known if isinstance(each.get("name"), str)}
    return {"spec": {}, **schedules[0], "calendars": excluded}


def _doubts(spec: Spec, now: datetime) -> list[str]:
    try:
        spec.check(now, minimum_seconds=settings.JIM_MINIMUM_INTERVAL_SECONDS)
    except SpecError as error:
        return [f"A new schedule with this spec would be refused: {error}."]
    return []


def _stored(schedule: Schedule) -> Subject:
    try:
        spec = schedule.compiled_spec
    except SpecError as error:
        _refuse(f"The spec of “{schedule}” is invalid: {error}")
    now = clock.now()
    notes = [*spec.notes, *_state(schedule)]
    since = max(schedule.processed_until or now, now)
    seed, skips = schedule.jitter_seed, schedule.skips
    return Subject(spec, schedule.name, seed, now, notes, since=since, skips=skips)


def _state(schedule: Schedule) -> list[str]:
    if schedule.status == Schedule.Status.CLOSED:
        return ["The schedule is closed, so it will not run at these times."]
    notes = []
    if schedule.is_paused:
        until = f" until {_clock(schedule.paused_until)} UTC" if schedule.paused_until else ""
        note = f" (“{schedule.pause_note}”)" if schedule.pause_note else ""
        notes.append(f"The schedule is paused{until}{note}, so its runs wait.")
    if schedule.remaining is not None:
        notes.append(f"Scheduled runs left: {schedule.remaining:,}. Further scheduled runs will be skipped.")
    return notes


def _find(wanted: str) -> Schedule:
    try:
        return Schedule.objects.called(wanted)
    except Refused as refused:
        _refuse(str(refused))


def _count(value: Any) -> int:
    count = whole_number(str(value), digits=4, least=1, most=MOST)
    if count is None:
        _refuse(f"--count: {shown(value)} is not a whole number from 1 to {MOST:,}.")
    return count


def _after(given: str, subject: Subject) -> datetime:
    if not given:
        return subject.since
    return bound_of("--after", given, subject.spec.time_zone, "cron", at=time(0, 0))


def _refuse(words: str) -> NoReturn:
    raise CommandError(" ".join(words.split()), returncode=2)


def _as_json(subject: Subject, rows: list[Upcoming]) -> dict[str, Any]:
    return {
        "name": subject.name,
        "sentence": subject.spec.describe(),
        "time_zone": subject.spec.time_zone,
        "notes": subject.notes,
        "times": [
            {
                "at": named_time(row.at),
                "local": row.local.isoformat(),
                "due_at": named_time(row.due_at),
                "note": row.note,
                "skipped_by": subject.skips.get(named_time(row.at), ""),
            }
            for row in rows
        ],
    }


def _show(console: Console, subject: Subject, rows: list[Upcoming], after: datetime) -> None:
    if subject.name:
        console.print(_printable(subject.name), style="bold")
    console.print(_printable(subject.spec.describe()))
    for note in subject.notes:
        console.print(_printable(f"Note: {note}"), style="yellow")
    if rows:
        console.print()
        console.print(_table(subject, rows))
    elif not subject.spec.is_manual:
        console.print(f"No runs after {_clock(after.astimezone(UTC))} UTC.")


def _table(subject: Subject, rows: list[Upcoming]) -> Table:
    """Return the table of times, without columns that would be empty or repeat another column."""
    seconds, zone = any(row.at.second for row in rows), subject.spec.time_zone
    place = zone if len(zone) <= LONGEST_HEADER else zone.rpartition("/")[2]
    columns = {place: [_clock(row.local, seconds=seconds, day=True) for row in rows]}
    if zone != "UTC":
        columns["UTC"] = [_clock(row.at, seconds=seconds) for row in rows]
    columns["From now"] = [distance(row.at, now=subject.now) for row in rows]
    if subject.spec.jitter:
        columns["With jitter"] = [_jittered(row) for row in rows]
    notes = [_note(subject, row) for row in rows]
    if any(notes):
        columns["Note"] = notes
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for header in columns:
        table.add_column(header, no_wrap=header != "Note")
    for row, cells in zip(rows, zip(*columns.values(), strict=True), strict=True):
        table.add_row(*map(Text, cells), style="dim" if named_time(row.at) in subject.skips else "")
    return table


def _printable(text: str) -> str:
    """Return the text with unprintable characters replaced, because they could control the terminal."""
    return "".join(each if each.isprintable() else REPLACEMENT for each in text)


def _clock(at: datetime, *, seconds: bool = False, day: bool = False) -> str:
    return f"{at:{'%a ' if day else ''}%Y-%m-%d %H:%M{':%S' if seconds else ''}}"


def _jittered(row: Upcoming) -> str:
    due = row.due_at.astimezone(row.local.tzinfo)
    return f"{due:%H:%M:%S}" if due.date() == row.local.date() else f"{due:%Y-%m-%d %H:%M:%S}"


def _note(subject: Subject, row: Upcoming) -> str:
    by = subject.skips.get(named_time(row.at))
    return ", ".join(filter(None, [f"skipped on request from {by}" if by else "", row.note]))
