"""The base of JIM's commands: tables for people, JSON for programs, errors in one line."""

from __future__ import annotations

import io
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import IO, Any, cast
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table
from rich.text import Text

from database import clock
from execution.loops.manual_runs import Overlapping
from operations.initiator import Initiator
from schedules.management.usable_database import usable_database
from schedules.models import Conflict, Refused
from schedules.spec import SpecError
from schedules.vault import VaultError
from text import words
from text.clean import REPLACEMENT, clean_json

# Exit codes. `doctor` has its own: 1 for warnings, 2 for errors.
FAILED, WRONG, NOT_NOW, CANCELLED, INTERRUPTED = 1, 2, 3, 4, 130
# The width of output to a file or a pipe, where lines should not be wrapped.
WIDE = 1_000
SHORT, GAP = 24, 2
STYLES = {
    "pending": "bright_black",
    "waiting": "yellow",
    "running": "blue",
    "complete": "green",
    "warning": "bright_yellow",
    "failed": "red",
    "cancelled": "bright_black",
    "skipped": "magenta",
}


class JimCommand(BaseCommand, ABC):
    """The base class of JIM's commands."""

    # Exit codes besides 0 and 2.
    exit_codes: Mapping[int, str] = {}
    has_json = True
    # Whether the command ends with an error if the database cannot be reached.
    needs_database = True

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        codes = {0: "success"} | {WRONG: "invalid or refused"} | dict(self.exit_codes)
        described = "; ".join(f"{code} {words}" for code, words in sorted(codes.items()))
        return super().create_parser(prog_name, subcommand, epilog=f"Exit codes: {described}.", **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        self.ask(parser)
        if self.has_json:
            parser.add_argument("--json", action="store_true", help="print JSON")

    def ask(self, parser: CommandParser) -> None:
        """Add the arguments of the command."""

    @abstractmethod
    def run(self, options: dict[str, Any]) -> None: ...

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.ending = ""  # output is written in pieces
        self.is_json = bool(options.get("json"))
        self.console = console(self.stdout, no_color=options["no_color"], colour=options["force_color"])
        with usable_database(is_needed=self.needs_database), in_one_line(), unread():
            self.run(options)

    @property
    def by(self) -> Initiator:
        return Initiator.command(type(self).__module__.rpartition(".")[2])

    @property
    def now(self) -> datetime:
        return clock.now()

    def tell(self, facts: Any, show: Callable[[], None]) -> None:
        """Print the facts as JSON, or call `show` to print them for people."""
        if not self.is_json:
            show()
            return
        text = json.dumps(clean_json(as_json(facts)), indent=2, ensure_ascii=False)
        self.stdout.write(f"{text}\n")

    def say(self, text: str, style: str = "") -> None:
        """Print lines that the terminal may wrap."""
        for line in text.splitlines():
            self.console.print(Text(printable(line)), style=style, soft_wrap=True)

    def columns(
        self, columns: Mapping[str, Sequence[str | Text]], *, spare: Sequence[str] = (), rest: str = ""
    ) -> None:
        """Print a table, and below it the line `rest`, which says which rows were left out."""
        self.console.print(table(columns, width=self.console.width, spare=spare))
        if rest:
            self.console.print(Text(rest), style="bright_black")

    def facts(self, facts: Sequence[tuple[str, str | Text]]) -> None:
        """Print names and values, one per line."""
        drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        drawn.add_column(style="bright_black", no_wrap=True)
        drawn.add_column(overflow="fold")
        for name, text in facts:
            drawn.add_row(name, Text(printable(text)) if isinstance(text, str) else text)
        self.console.print(drawn)


def console(stdout: Any, *, no_color: bool = False, colour: bool = False) -> Console:
    """Return a console that uses colours and the window's width on a terminal.

    Elsewhere, lines have no colours, and are wrapped only if COLUMNS is set.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has every glyph
    is_piped = not stdout.isatty() and not os.environ.get("COLUMNS")
    return Screen(
        file=cast("IO[str]", stdout),
        highlight=False,
        markup=False,
        emoji=False,
        width=WIDE if is_piped else None,
        no_color=no_color or None,
        force_terminal=True if colour else None,
    )


class Screen(Console):
    def on_broken_pipe(self) -> None:
        """Let `unread` handle a closed pipe. Rich would exit with a code that means something else here."""
        raise BrokenPipeError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn errors that models raise into one line with an exit code, without a traceback."""
    try:
        yield
    except (Overlapping, Conflict) as refused:
        raise CommandError(printable(str(refused)), returncode=NOT_NOW) from None
    except (Refused, SpecError, VaultError) as refused:
        raise CommandError(printable(str(refused)), returncode=WRONG) from None
    except ValidationError as error:
        raise CommandError(printable(complaints(error)), returncode=WRONG) from None
    except UnicodeEncodeError as error:  # arguments are bytes, which may not be UTF-8
        raise CommandError(
            printable(f"“{error.object[:100]}” is not UTF-8 text."), returncode=WRONG
        ) from None
    except KeyboardInterrupt:
        raise CommandError("Interrupted.", returncode=INTERRUPTED) from None


@contextmanager
def unread() -> Iterator[None]:
    """Ignore the error that occurs if the reader of a pipe has closed it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # When Python exits, it flushes the output once more, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complaints(error: ValidationError, names: Mapping[str, str] | None = None) -> str:
    """Join error messages, each preceded by the name of its field or option."""
    by_field = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
    return " ".join(
        f"{(names or {}).get(name, name)}: {' '.join(texts)}"
        if name and name != "__all__"
        else " ".join(texts)
        for name, texts in by_field.items()
    )


def table(
    columns: Mapping[str, Sequence[str | Text]], *, width: int = WIDE, spare: Sequence[str] = ()
) -> Table:
    """Build a table without empty columns. Columns in `spare` are left out if the window is too narrow."""
    kept = {name: cells for name, cells in columns.items() if any(str(cell) for cell in cells)}
    for name in spare:
        if _room(kept) > width:
            kept.pop(name, None)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name, cells in kept.items():
        drawn.add_column(name, overflow="fold", no_wrap=_widest(name, cells) <= SHORT)
    for cells in zip(*kept.values(), strict=True):
        drawn.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in cells))
    return drawn


def _room(columns: Mapping[str, Sequence[str | Text]]) -> int:
    """Return the smallest width that the columns need; long cells are wrapped."""
    return sum(GAP + min(_widest(name, cells), SHORT) for name, cells in columns.items()) - GAP


def _widest(name: str, cells: Sequence[str | Text]) -> int:
    return max(len(name), *(len(cell) for cell in cells))


def state(name: str, *, of: str = "") -> Text:
    """Show a state with its glyph and colour; if `of` is given, with the glyph and colour of that state."""
    tone = words.tone(of or name)
    return Text(f"{words.TONES[tone][0]} {words.said(name)}", style=STYLES[tone]) if name else Text()


def when(at: datetime | None, *, now: datetime) -> str:
    return "" if at is None else words.distance(at, now=now)


def on_clock(at: datetime | None, zone: tzinfo = UTC) -> str:
    return "" if at is None else f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S}"


def printable(text: str) -> str:
    """Return the text as one line without the control characters that errors and notes may contain."""
    return "".join(each if each.isprintable() else " " if each.isspace() else REPLACEMENT for each in text)


def as_json(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case Mapping():
            return {str(name): as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
    return value
