"""Reads and writes YAML files that people edit and review. The reader keeps the line of each value.

Values have the types of JSON. Words that other YAML readers convert stay strings: yes, NO, 12:30,
2026-12-01, 0755. Anchors, aliases and tags are refused, so that a short file cannot expand to a large one
and can contain only data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import yaml

from text.clean import clean_text

from . import strict_json

MAX_DEPTH = strict_json.MAX_DEPTH + 8
MOST_COMPLAINTS = 100

# The C parser is about ten times as fast. If it is not installed, the Python parser gives the same result.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.inf|\.nan", re.IGNORECASE)
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# A block scalar would change or lose these characters.
UNFIT_FOR_BLOCK = re.compile("[\r\x85\u2028\u2029\ufeff]|[ \t]$", re.MULTILINE)


class Complaint(NamedTuple):
    line: int
    words: str


class Unreadable(Exception):
    def __init__(self, complaints: list[Complaint]) -> None:
        self.complaints = complaints
        super().__init__("; ".join(f"line {line}: {words}" for line, words in complaints))


@dataclass(slots=True)
class Node:
    """A value, the line of its key or item, and its path, such as `steps.0.name`.

    If the value is a list or an object, it contains nodes. A value that was not read from YAML has line 0.
    """

    value: Any
    line: int
    path: str = ""

    def plain(self) -> Any:
        match self.value:
            case dict():
                return {key: node.plain() for key, node in self.value.items()}
            case list():
                return [node.plain() for node in self.value]
        return self.value

    def inside(self, *path: str | int) -> Node:
        """Return the node at the path or, if there is none, the deepest existing node along the path."""
        node = self
        for part in path:
            match node.value:
                case dict() if part in node.value:
                    node = node.value[part]
                case list() if isinstance(part, int) and part < len(node.value):
                    node = node.value[part]
                case _:
                    break
        return node


def node_of(value: Any, path: str = "") -> Node:
    """Convert a value that was read as JSON to nodes, and return the root node."""
    match value:
        case dict():
            value = {key: node_of(inner, _joined(path, key)) for key, inner in value.items()}
        case list():
            value = [node_of(inner, _joined(path, number)) for number, inner in enumerate(value)]
    return Node(value, 0, path)


def read(text: str) -> Node:
    """Parse one YAML document and return its root node; raise `Unreadable` with all problems found."""
    return _Reading().read(text)


def write(value: object) -> str:
    """Format a value as YAML in block style, with one line for each value, so that diffs are easy to read."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=float("inf"),
    )


@dataclass
class _Open:
    """A list or an object whose end has not been read yet."""

    node: Node
    key: str | None = None
    key_line: int = 0


@dataclass
class _Reading:
    """A reader that builds a document from the parser's events, without recursion.

    `yaml.compose` is not used: it is recursive, and it drops the anchors and the lines of aliases, which the
    error messages need (see tests/ground/test_yaml_lines.py). Checking the events before composing made the
    code longer and twice as slow.
    """

    complaints: list[Complaint] = field(default_factory=list)
    open: list[_Open] = field(default_factory=list)
    root: Node | None = None

    def read(self, text: str) -> Node:
        try:
            self._check_characters(text)
            for event in yaml.parse(text, Loader=Loader):
                self._take(event)
        except yaml.YAMLError as error:
            self.complaints.append(_syntax_complaint(error, text))
        except Unreadable:
            pass  # the reason is among the complaints
        if self.complaints:
            raise Unreadable(self.complaints)
        return self.root or Node(None, 1)

    def _check_characters(self, text: str) -> None:
        if found := UNPRINTABLE.search(text):
            line = text.count("\n", 0, found.start()) + 1
            self._stop(line, f"the character U+{ord(found[0]):04X} cannot be part of a YAML file")

    def _take(self, event: yaml.Event) -> None:
        line = _line(event.start_mark)
        match event:
            case yaml.ScalarEvent():
                self._check_plainness(event, line)
                self._put(self._scalar(event, line), line, key=event.value)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._check_plainness(event, line)
                self._enter([] if isinstance(event, yaml.SequenceStartEvent) else {}, line)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                self.open.pop()
            case yaml.AliasEvent(anchor=str(name)):
                self._complain(line, f"aliases are not allowed: replace *{name[:40]} with its value")
                self._put(None, line, key="*")
            case yaml.DocumentStartEvent() if self.root is not None:
                self._stop(line, "a second document begins here: a file can contain only one")

    def _check_plainness(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            self._complain(line, f"anchors are not allowed: remove &{event.anchor[:40]}")
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._complain(line, f"tags are not allowed: remove {tag[:60]}, and put text in quotes")

    def _enter(self, value: list[Node] | dict[str, Node], line: int) -> None:
        if len(self.open) == MAX_DEPTH:
            self._stop(line, f"nested too deeply; at most {MAX_DEPTH} levels are allowed")
        self.open.append(_Open(self._put(value, line)))

    def _put(self, value: Any, line: int, *, key: str | None = None) -> Node:
        node = Node(value, line)
        if not self.open:
            self.root = node
            return node
        around = self.open[-1]
        if isinstance(around.node.value, list):
            node.path = _joined(around.node.path, len(around.node.value))
            around.node.value.append(node)
        elif around.key is None:
            self._begin_entry(around, key, line)
        else:
            node.line, node.path = around.key_line, _joined(around.node.path, around.key)
            around.node.value[around.key] = node
            around.key = None
        return node

    def _begin_entry(self, around: _Open, key: str | None, line: int) -> None:
        if key is None:
            self._stop(line, "a key must be text, not a list or an object")
        if key in around.node.value:
            self._complain(line, f"the key “{key[:60]}” appears twice")
        around.key, around.key_line = key, line

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> Any:
        text: str = event.value
        is_plain = event.implicit[0]
        if clean_text(text) != text:
            self._complain(line, "the text contains NUL or half a surrogate pair: remove these characters")
        elif is_plain and text in WORDS:
            return WORDS[text]
        elif is_plain and NOT_FINITE.fullmatch(text):
            self._complain(line, f"{text} is not JSON; use a finite number or null")
        elif is_plain and NUMBER.fullmatch(text):
            try:
                return strict_json.loads(text)
            except ValueError as error:
                self._complain(line, str(error))
        return text

    def _complain(self, line: int, words: str) -> None:
        if len(self.complaints) == MOST_COMPLAINTS:
            self._stop(line, "more problems follow that are not listed")
        self.complaints.append(Complaint(line, words))

    def _stop(self, line: int, words: str) -> NoReturn:
        self.complaints.append(Complaint(line, words))
        raise Unreadable(self.complaints)


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _line(mark: Any) -> int:
    return int(mark.line) + 1


def _syntax_complaint(error: yaml.YAMLError, text: str) -> Complaint:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return Complaint(1, f"not YAML: {error}")
    lines = text.splitlines() or [""]
    line = min(
        _line(error.problem_mark), len(lines)
    )  # an error at the end of the text is reported one line later
    if re.match(" *\t", lines[line - 1]):
        return Complaint(line, "not YAML: indent with spaces, not with tabs")
    words = ", ".join(filter(None, [error.problem, error.context]))
    begun = _line(error.context_mark) if error.context_mark else line
    return Complaint(line, f"not YAML: {words}" + ("" if begun == line else f" that begins on line {begun}"))


class _Dumper(yaml.SafeDumper):
    """A YAML writer that quotes text if a reader, this one or another, might take it for another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent lists below their key."""
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_odd = UNFIT_FOR_BLOCK.search(text) and not text.isprintable()
    style = '"' if is_odd else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"(?:{NUMBER.pattern})\Z"), list("-0123456789")
)
