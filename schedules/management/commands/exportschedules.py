"""The command `exportschedules`."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from schedules.as_code import selected, written
from schedules.management.usable_database import usable_database
from schedules.models import Refused


class Command(BaseCommand):
    help = (
        "Write schedules, and the calendars and templates that they use, as YAML that importschedules can "
        "read. Without names or tags, write all schedules that are not closed, all calendars, and all "
        "templates that are active or in use. Secrets are written as references, without their values."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="write only schedules with these names")
        parser.add_argument(
            "--tag",
            action="append",
            default=[],
            help="write only schedules with this tag; if repeated, only schedules with all of these tags",
        )
        parser.add_argument(
            "--output",
            metavar="FILE",
            default="-",
            help="the file to write or replace (default: standard output)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with usable_database():
                text = written(selected(options["names"], tags=options["tag"]))
        except Refused as refused:
            raise CommandError(str(refused), returncode=2) from None
        if options["output"] == "-":
            self._print(text)
        else:
            _save(Path(options["output"]), text)

    def _print(self, text: str) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        try:
            self.stdout.write(text, ending="")
            self.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe: discard what Python flushes at exit, which would raise the error
            # again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _save(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise CommandError(f"--output: {path} cannot be written: {error.strerror}.", returncode=2) from None
