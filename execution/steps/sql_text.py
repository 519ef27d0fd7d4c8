"""Split an SQL script into statements and find their parameters, without a database.

The scanner recognises quotes, comments and semicolons inside statements, as psql and sqlite3 do. What a
statement means is left to the database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

Dialect = Literal["postgresql", "sqlite"]
MOST_STATEMENTS = 10_000
WORDS = 16  # enough to tell all kinds of statements apart
BEGINNING = 4
MAIN_VERBS = {"SELECT", "VALUES", "TABLE", "INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"}

_WORD = r"(?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*+)"
_PLAIN = r"(?P<plain>[0-9,.=<>+*|%!~^&][0-9,.=<>+*|%!~^&\ \n]*+)"
_REST = r"(?P<semicolon>;)|(?P<opening>\()|(?P<closing>\))|(?P<other>.)"
_CONTINUED = r"(?:[ \t\f\v]|--[^\n\r]*)*+[\n\r](?:\s|--[^\n\r]*[\n\r])*+"
_TOKENS: dict[Dialect, re.Pattern[str]] = {
    "postgresql": re.compile(
        rf"""(?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
        |(?P<nested>/\*)
        |(?P<quoted>[eE]'(?:[^'\\]|\\.|'')*+'(?:{_CONTINUED}'(?:[^'\\]|\\.|'')*+')*+
            |(?:[nNbBxX]|[uU]&)?'(?:[^']|'')*+'
            |(?:[uU]&)?"(?:[^"]|"")*+")
        |(?P<open>[eE]?'|")
        |(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*+)?\$)
        |(?P<foreign>\$[0-9]+)
        |(?P<operator>::|:=)
        # A colon right behind an operand is an operator: x[low:high], JSON_OBJECT('key':value).
        |(?<![\w)\]"'$]):(?P<parameter>[^\W\d]\w*+)
        |{_WORD}|{_PLAIN}|(?P<command>\\\S*)|{_REST}""",
        re.VERBOSE | re.DOTALL,
    ),
    "sqlite": re.compile(
        rf"""(?P<space>[ \t\n\f\r]+|--[^\n]*|/\*.*?\*/)
        |(?P<quoted>'(?:[^']|'')*+'|"(?:[^"]|"")*+"|`(?:[^`]|``)*+`|\[[^\]]*+\])
        |(?P<open>['"`\[]|/\*)
        |:(?P<parameter>[^\W\d]\w*+)
        |(?P<foreign>\?[0-9]*|[@$\#:]\w+)
        |{_WORD}|(?P<command>\\\S*)|(?P<dot>\.[a-z]+)|{_PLAIN}|{_REST}""",
        re.VERBOSE | re.DOTALL,
    ),
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class SqlTextError(ValueError):
    """Raised if a script cannot be split. The message says what is wrong and in which line."""


class Parameter(NamedTuple):
    """A parameter and its position in the text of its statement, including the colon."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Statement:
    """One statement of a script.

    `text_line` is the line of the script in which the text begins, and `line` is the line in which the
    statement begins after any comments. `words` are the first words of the statement outside quotes and
    parentheses, in capitals.
    """

    text: str
    text_line: int
    line: int
    words: tuple[str, ...]
    verb: str
    parameters: tuple[Parameter, ...]

    @property
    def names(self) -> list[str]:
        """Return the names of the parameters, each once."""
        return list(dict.fromkeys(parameter.name for parameter in self.parameters))

    def numbered(self) -> str:
        """Return the text with its parameters replaced by $1, $2 and so on, in the order of `names`."""
        numbers = {name: f"${number}" for number, name in enumerate(self.names, 1)}
        pieces, end = [], 0
        for parameter in self.parameters:
            pieces += [self.text[end : parameter.start], numbers[parameter.name]]
            end = parameter.end
        return "".join([*pieces, self.text[end:]])

    def line_at(self, offset: int) -> int:
        """Return the line of the script that contains this offset of the numbered text."""
        return self.text_line + self.numbered().count("\n", 0, offset)


@lru_cache(maxsize=16)
def split(script: str, dialect: Dialect) -> tuple[Statement, ...]:
    """Return the statements of the script; raise SqlTextError if it cannot be split."""
    statements = []
    draft = _Draft(dialect, start=0, line=1)
    for kind, start, text in _tokens(script, dialect):
        if kind == "semicolon" and draft.ends_here():
            statements.append(draft.finished(script, end=start))
            if len(statements) > MOST_STATEMENTS:
                raise SqlTextError(
                    f"more than {MOST_STATEMENTS:,} statements; split the script into several steps"
                )
            draft = draft.next(script, start=start + 1)
        elif kind == "dot" and draft.first is None:
            raise _shell_command(script, start, text)
        else:
            draft.add(kind, start, text)
    statements.append(draft.finished(script, end=len(script)))
    return tuple(statement for statement in statements if statement)


def _tokens(script: str, dialect: Dialect) -> Iterator[tuple[str, int, str]]:
    pattern, position = _TOKENS[dialect], 0
    while found := pattern.match(script, position):
        kind, start, position = str(found.lastgroup), position, found.end()
        match kind:
            case "nested":
                position = _end_of_comment(script, start)
            case "dollar":
                position = _end_of_dollars(script, start, tag=found[0])
            case "foreign":
                raise SqlTextError(
                    f"line {_line(script, start)}: {found[0]} is not supported; write parameters as :name"
                )
            case "command":
                raise _shell_command(script, start, found[0])
            case "open":
                raise _unclosed(script, start, found[0])
        if kind not in ("space", "nested"):
            yield kind, start, found[0]


def _end_of_comment(script: str, start: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(script, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise _unclosed(script, start, "/*")


def _end_of_dollars(script: str, start: int, *, tag: str) -> int:
    end = script.find(tag, start + len(tag))
    if end < 0:
        raise _unclosed(script, start, tag)
    return end + len(tag)


def _unclosed(script: str, start: int, opening: str) -> SqlTextError:
    what = {"'": "text", "*": "comment"}.get(opening[-1], "quoted name" if len(opening) == 1 else "text")
    return SqlTextError(
        f"the {what} that begins with {opening} in line {_line(script, start)} is never closed"
    )


def _shell_command(script: str, start: int, command: str) -> SqlTextError:
    return SqlTextError(
        f"line {_line(script, start)}: {command} is a command of the database's shell, not SQL; remove it"
    )


def _line(script: str, offset: int) -> int:
    return script.count("\n", 0, offset) + 1


@dataclass
class _Draft:
    """A statement that is being read."""

    dialect: Dialect
    start: int
    line: int
    first: int | None = None
    verb: str = ""
    beginning: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    parameters: list[tuple[str, int, int]] = field(default_factory=list)
    depth: int = 0
    blocks: int = 0
    last: str = ""
    before_last: str = ""

    def add(self, kind: str, start: int, text: str) -> None:
        if self.first is None:
            self.first = start
        self.before_last, self.last = self.last, ";" if kind == "semicolon" else ""
        if len(self.beginning) < BEGINNING:
            self.beginning.append(text.upper() if kind == "word" else "")
        match kind:
            case "parameter":
                self.parameters.append((text[1:], start, start + len(text)))
            case "opening":
                self.depth += 1
            case "closing":
                self.depth = max(self.depth - 1, 0)
            case "word":
                self._add_word(text.upper())

    def ends_here(self) -> bool:
        """Return whether a semicolon here ends the statement, rather than being part of its body."""
        if self.dialect == "sqlite":
            return not self._is_trigger() or (self.before_last, self.last) == (";", "END")
        return self.depth == 0 and self.blocks == 0

    def next(self, script: str, *, start: int) -> _Draft:
        return _Draft(self.dialect, start, self.line + script.count("\n", self.start, start))

    def finished(self, script: str, *, end: int) -> Statement | None:
        if self.first is None:
            return None
        whole = script[self.start : end]
        text = whole.strip()
        start = self.start + whole.index(text)
        text_line = self.line + script.count("\n", self.start, start)
        line = text_line + script.count("\n", start, self.first)
        self._refuse_copying(line)
        parameters = tuple(
            Parameter(name, first - start, last - start) for name, first, last in self.parameters
        )
        return Statement(text, text_line, line, tuple(self.words), self.verb, parameters)

    def _add_word(self, word: str) -> None:
        self.last = word
        if not self.verb or (self.verb == "WITH" and self.depth == 0 and word in MAIN_VERBS):
            self.verb = word
        if self.depth:
            return
        if len(self.words) < WORDS:
            self.words.append(word)
        if self.dialect == "postgresql" and self._is_routine():
            self._count_block(word)

    def _count_block(self, word: str) -> None:
        """Count the open blocks of a routine (BEGIN ATOMIC … END).

        CASE counts too, because it also ends with END.
        """
        if word == "BEGIN" or (word == "CASE" and self.blocks):
            self.blocks += 1
        elif word == "END":
            self.blocks = max(self.blocks - 1, 0)

    def _is_routine(self) -> bool:
        match self.beginning:
            case ["CREATE", "OR", "REPLACE", "FUNCTION" | "PROCEDURE", *_]:
                return True
            case ["CREATE", "FUNCTION" | "PROCEDURE", *_]:
                return True
        return False

    def _is_trigger(self) -> bool:
        match self.beginning[self.beginning[:1] == ["EXPLAIN"] :]:
            case ["CREATE", "TRIGGER", *_] | ["CREATE", "TEMP" | "TEMPORARY", "TRIGGER", *_]:
                return True
        return False

    def _refuse_copying(self, line: int) -> None:
        """Raise SqlTextError for a COPY from or to the client, because the copied rows are not SQL."""
        if self.verb == "COPY" and {("FROM", "STDIN"), ("TO", "STDOUT")} & set(
            zip(self.words, self.words[1:], strict=False)
        ):
            raise SqlTextError(
                f"line {line}: COPY between the server and its client is not supported; "
                f"use INSERT and SELECT, or a file on the server"
            )
