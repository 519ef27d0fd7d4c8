"""The command `importschedules`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import track

from database import clock
from files import given_files
from operations.initiator import Initiator
from schedules.as_code import difference
from schedules.code_files import MOST_BYTES, Library, Problem
from schedules.management.usable_database import usable_database
from schedules.reconcile import Author, Change, Outcome, ScheduleChange, reconcile
from schedules.spec.wording import counted

MANY = 50


class Command(BaseCommand):
    help = (
        "Create and change schedules, calendars and templates from YAML files in the format of "
        "exportschedules. Each entry changes the object with the same name, or creates it. Objects that "
        "already match their entry, and objects that the files do not mention, stay unchanged. If any file "
        "has an error, nothing is changed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="a YAML file, or - for standard input")
        parser.add_argument("--dry-run", action="store_true", help="only show what would change")
        parser.add_argument(
            "--as",
            dest="username",
            metavar="USERNAME",
            default="",
            help="make the changes as this user, with only this user's permissions",
        )
        parser.add_argument("--paused", action="store_true", help="create new schedules paused")
        parser.add_argument("--json", action="store_true", help="print the changes as JSON, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        library = Library()
        for file in options["files"]:
            _add(library, file)
        with usable_database():
            outcome = reconcile(
                library,
                author=_author(options["username"]),
                now=clock.now(),
                dry_run=options["dry_run"],
                paused=options["paused"],
                along=_with_progress,
            )
        if outcome.problems:
            self._complain(outcome.problems, options["files"])
        if options["json"]:
            facts = {"dry_run": options["dry_run"], **outcome.as_json()}
            self.stdout.write(json.dumps(facts, indent=2, ensure_ascii=False))
        else:
            self._tell(outcome, dry_run=options["dry_run"])

    def _complain(self, problems: Sequence[Problem], files: Sequence[str]) -> None:
        for problem in sorted(problems, key=lambda problem: (files.index(problem.file), problem.line)):
            self.stderr.write(_printable(str(problem)), style_func=str)
        told = f"{counted(len(problems), 'problem')}: nothing was imported."
        raise CommandError(told, returncode=2)

    def _tell(self, outcome: Outcome, *, dry_run: bool) -> None:
        for change in outcome.changes:
            for line in _told(change):
                self.stdout.write(_printable(line))
        if outcome.unchanged:
            self.stdout.write(f"= unchanged {outcome.unchanged:,}")
        self.stdout.write(_summary(outcome, dry_run=dry_run))


def _add(library: Library, file: str) -> None:
    try:
        library.add(file, given_files.content_of(file, most=MOST_BYTES))
    except given_files.Unfit as error:
        library.problems.append(Problem(file, error.line, error.words))


def _author(username: str) -> Author:
    if not username:
        return Author()
    users = get_user_model()
    user = users._default_manager.filter(**{users.USERNAME_FIELD: username}).first()
    if user is None or not user.is_active:
        what = "is not active" if user else "does not exist"
        raise CommandError(f"--as: the user “{username}” {what}.", returncode=2)
    return Author(Initiator.user(user), user.has_perm)


def _with_progress(changes: Sequence[Change]) -> Iterable[Change]:
    console = Console(stderr=True)
    is_quick = len(changes) < MANY or not console.is_terminal
    return track(changes, "Importing", console=console, transient=True, disable=is_quick)


def _told(change: Change) -> list[str]:
    kind = "" if isinstance(change, ScheduleChange) else f"{change.entry.kind} "
    what = f"{kind}“{change.entry.name}”"
    if change.is_new:
        return [f"+ create {what}: {change.in_words()}"]
    return [f"~ change {what}", *(f"  {line}" for line in difference(change.before, change.after))]


def _summary(outcome: Outcome, *, dry_run: bool) -> str:
    created = sum(change.is_new for change in outcome.changes)
    counts = {"created": created, "changed": len(outcome.changes) - created, "unchanged": outcome.unchanged}
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "nothing"
    others = f"; {counted(outcome.others, 'other schedule')} not in the files" if outcome.others else ""
    return f"Dry run (nothing was saved): {told}{others}." if dry_run else f"Imported: {told}{others}."


def _printable(line: str) -> str:
    """Return the line with unprintable characters escaped, because they could control the terminal."""
    return "".join(each if each.isprintable() or each == "\t" else f"\\u{ord(each):04x}" for each in line)
