"""What all commands have in common: tables, colours, widths, and texts that cannot do harm."""

from __future__ import annotations

import io
import sys
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from rich.console import Console
from rich.text import Text

from jimsite.output import shown
from jimsite.terminal import as_json, complaints, console, printable, state, table, unread
from tests.base import NOW

CELLS: dict[str, list[str | Text]] = {
    "State": [state("completed"), state("failed_with_error")],
    "Name": ["first", "second"],
    "Nothing": ["", ""],
    "Note": ["x" * 30, ""],
    "Spare": ["y" * 10, ""],
}


def drawn(width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table(CELLS, width=width, spare=("Spare",)))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_table_has_no_column_that_says_nothing_and_none_to_spare_in_a_narrow_window() -> None:
    assert drawn(200) == [
        "State        Name    Note                            Spare",
        f"✓ completed  first   {'x' * 30}  {'y' * 10}",
        "✕ failed     second",
    ]
    assert drawn(46) == [
        "State        Name    Note",
        f"✓ completed  first   {'x' * 25}",
        f"                     {'x' * 5}",
        "✕ failed     second",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdout", "env", "options", "is_coloured"),
    [
        (Terminal(), {}, {}, True),
        (Terminal(), {"NO_COLOR": "1"}, {}, False),
        (Terminal(), {}, {"no_color": True}, False),
        (io.StringIO(), {}, {}, False),
        (io.StringIO(), {}, {"colour": True}, True),
    ],
)
def test_colours_are_for_terminals_that_want_them_and_lines_for_a_file_are_whole(
    monkeypatch: pytest.MonkeyPatch, stdout: Any, env: dict[str, str], options: Any, is_coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | env).items():
        monkeypatch.setenv(name, value)
    console(stdout, **options).print(Text("x", style="red"))
    assert ("\x1b[31m" in stdout.getvalue()) is is_coloured
    assert console(io.StringIO()).width >= 1_000
    monkeypatch.setenv("COLUMNS", "72")
    assert console(io.StringIO()).width == 72


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_whoever_has_seen_enough_may_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr("os.dup2", lambda _, number: closed.append(number))
    lines: list[str] = []
    with unread():
        for line in ("first", "second"):
            lines.append(line)
            console(Closed()).print(line)
    assert (lines, closed) == (["first"], [sys.stdout.fileno()])


def test_what_steps_say_keeps_its_colours_and_loses_what_moves_the_cursor() -> None:
    wanted = {
        "a\ttab": "a\ttab",
        "\x1b[31mred\x1b[0m": "red",
        "clear \x1b[2J screen": "clear  screen",
        "title \x1b]0;evil\x07 end": "title  end",
        "bell \x07": "bell ",
    }
    assert {said: shown(said).plain for said in wanted} == wanted
    assert [said for said in wanted if shown(said).spans] == ["\x1b[31mred\x1b[0m"]
    assert printable("two\nlines \x1b[2J") == "two lines \N{REPLACEMENT CHARACTER}[2J"


def test_json_has_times_with_z_and_lengths_in_seconds_and_complaints_name_their_fields() -> None:
    told = as_json({"at": NOW, "took": timedelta(minutes=1), "key": uuid.UUID(int=7), "list": (1, None)})
    assert (told["at"], told["took"]) == ("2026-11-16T03:00:00Z", 60.0)
    assert (told["key"], told["list"]) == (str(uuid.UUID(int=7)), [1, None])
    wrong = ValidationError({"end_at": ["Too late.", "Too long."], "__all__": ["No."]})
    assert complaints(wrong) == "end_at: Too late. Too long. No."
    assert complaints(ValidationError("Simply no.")) == "Simply no."
