"""The result of an SQL statement, as lines for people and as JSON for later steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .outcome import SPARE_CHARS

CELL_CHARS = 60
LONE_CELL_CHARS = 1_000  # of a result with one column, such as a query plan
LINE_CHARS = 2_000
VALUE_CHARS = 4_000
FIRST_CHARS = 64_000


class SqlFailed(Exception):
    """Raised if a connection, a statement or a commit fails. `line` is the line in the script, if known."""

    def __init__(self, message: str, *, can_retry: bool, line: int | None = None) -> None:
        super().__init__(message)
        self.can_retry = can_retry
        self.line = line


@dataclass
class StatementResult:
    """The result of one statement: the number of rows, the first `keep` rows to show, and the first as JSON.

    `masked` hides secrets in each value before the value is cut, because half a secret would not be
    recognised.
    """

    keep: int
    masked: Callable[[str], str]
    verb: str = ""
    changed: int | None = None
    columns: list[str] = field(default_factory=list)
    shown: list[list[str | None]] = field(default_factory=list)
    first: list[object] | None = None
    count: int = 0

    @property
    def wants_more(self) -> bool:
        return len(self.shown) < self.keep

    def show(self, row: Sequence[str | None]) -> None:
        self.shown.append([None if value is None else self._cut(value, LONE_CELL_CHARS) for value in row])

    def keep_first(self, row: Sequence[object]) -> None:
        self.first = [self._storable(value) for value in row]

    def lines(self, *, seconds: float) -> list[str]:
        number = self.count if self.columns else self.changed
        rows = "" if number is None else " 1 row" if number == 1 else f" {number:,} rows"
        head = f"{self.verb}{rows} ({seconds:.2f} s)"
        if not self.columns or not self.shown:
            return [head]
        if len(self.shown) < self.count:
            head += f", the first {len(self.shown):,}" if len(self.shown) > 1 else ", the first"
        return [f"{head}:", *_table(self.columns, self.shown)]

    def first_row(self) -> dict[str, object] | None:
        """Return the first row by column name, or None. Repeated names are numbered: count, count_2."""
        if self.first is None:
            return None
        row: dict[str, object] = {}
        left = FIRST_CHARS
        for column, value in zip(self.columns, self.first, strict=True):
            left -= len(column) + len(json.dumps(value))
            if left < 0:
                break
            row[_unused(column, row)] = value
        return row

    def _storable(self, value: object) -> object:
        """Return the value, or the beginning of its text if it is too long for a result."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return value if len(text) <= VALUE_CHARS else self._cut(text, VALUE_CHARS)

    def _cut(self, text: str, most: int) -> str:
        if len(text) <= most:
            return self.masked(text)
        text = self.masked(text[: most + SPARE_CHARS])
        return text if len(text) <= most else f"{text[: most - 1]}…"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[str]:
    most = CELL_CHARS if len(columns) > 1 else LONE_CELL_CHARS
    cells = [[_cell(value, most) for value in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    fitting = _fitting(widths)
    rule = "-+-".join("-" * width for width in widths[:fitting])
    lines = [" | ".join(map(str.ljust, row[:fitting], widths)).rstrip() for row in cells]
    more = len(columns) - fitting
    note = [f"… and {more:,} more column{'s' if more > 1 else ''}"] if more else []
    return [lines[0], rule, *lines[1:], *note]


def _cell(value: str | None, most: int) -> str:
    if value is None:
        return "NULL"
    text = value if value.isprintable() else "".join(map(_visible, value[: most + 1]))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _visible(char: str) -> str:
    return char if char.isprintable() else {"\n": "↵", "\t": " "}.get(char, "\N{REPLACEMENT CHARACTER}")


def _fitting(widths: Sequence[int]) -> int:
    """Return how many columns fit into a line; at least one."""
    total = 0
    for number, width in enumerate(widths):
        total += width + 3
        if number and total > LINE_CHARS:
            return number
    return len(widths)


def _unused(column: str, row: dict[str, object]) -> str:
    name, number = column, 1
    while name in row:
        number += 1
        name = f"{column}_{number}"
    return name
