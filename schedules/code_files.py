"""Reads import files: checks the types of the values, and keeps their positions for error messages."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from django.core.exceptions import ValidationError
from django.db import models

from files.given_files import Unfit, text_of
from files.yaml_lines import Node, Unreadable, read
from operations.field_errors import Path, dotted, field_errors, in_words

from .as_code import CALENDAR, SCHEDULE, STEP, TEMPLATE, VERSION, Shape, shape_of
from .field_types import type_complaint
from .models import Schedule
from .placeholders import hint
from .spec.wording import shown

MOST_BYTES = 5 * 1024 * 1024
MOST_ENTRIES = 5_000
# Fields that an import sets only when it creates a schedule; later they belong to the schedule's state.
WHEN_NEW: Shape = {"paused": models.BooleanField()} | dict(shape_of(Schedule, ["remaining"]))
# The kind of problem: an error in the file, a missing permission, or an object that has just changed.
Code = Literal["invalid", "forbidden", "changed"]
PLAIN: dict[str, Shape] = {"calendar": CALENDAR, "template": TEMPLATE}
REFERENCE: Shape = {"template": models.CharField(null=True)}


class Problem(NamedTuple):
    """A problem in a file. The line tells people where the problem is, and the path tells programs."""

    file: str
    line: int
    words: str
    path: str = ""
    code: Code = "invalid"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.words}"


@dataclass(frozen=True)
class Entry:
    """A calendar, template or schedule in a file: its values and their positions."""

    kind: str
    name: str
    given: dict[str, Any]
    steps: list[dict[str, Any]]
    file: str
    node: Node

    @property
    def key(self) -> str:
        """Return the normalized name in lower case: names that differ only in case mean the same object."""
        return unicodedata.normalize("NFC", self.name.strip()).lower()

    @property
    def place(self) -> str:
        return f"{self.file}:{self.node.line}" if self.file else self.node.path

    def problem(self, words: str, *path: str | int, code: Code = "invalid") -> Problem:
        node = self.node.inside(*path)
        return Problem(self.file, node.line, f"{self.kind} “{self.name}”: {words}", node.path, code)

    def problems(self, error: ValidationError, *, code: Code = "invalid") -> list[Problem]:
        """Return the errors of a model as problems, each with the line of the file that is wrong."""
        return [self._placed(each.path or ("name",), each.message, code) for each in field_errors(error)]

    def _placed(self, path: Path, message: str, code: Code) -> Problem:
        node = self.node.inside(*path)
        line = (_mentioned(node, message) or node).line
        names = [str(step.get("name", "")) for step in self.steps]
        words = f"{self.kind} “{self.name}”: {in_words(path, names)}: {message}"
        return Problem(self.file, line, words, f"{self.node.path}.{dotted(path)}", code)


@dataclass
class Library:
    """The entries of several files, and the problems that were found in them."""

    calendars: dict[str, Entry] = field(default_factory=dict)
    templates: dict[str, Entry] = field(default_factory=dict)
    schedules: dict[str, Entry] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, file: str, content: bytes) -> None:
        try:
            self.add_text(file, text_of(content, most=MOST_BYTES))
        except Unfit as error:
            self.problems.append(Problem(file, error.line, error.words))

    def add_text(self, file: str, text: str) -> None:
        try:
            self.add_document(file, read(text))
        except Unreadable as error:
            self.problems += [Problem(file, *complaint) for complaint in error.complaints]

    def add_document(self, file: str, node: Node) -> None:
        document = _Part(file, node, "", self.problems)
        if not document.is_object:
            document.complain("expected keys at the top level, such as version: 1 and schedules: […]")
        elif complaint := _version_complaint(document.node):
            document.complain(complaint, document.node.inside("version"))
        else:
            document.refuse_unknown(["version", "calendars", "templates", "schedules"])
            self._add_entries(document, "calendars", "calendar", self.calendars)
            self._add_entries(document, "templates", "template", self.templates)
            self._add_entries(document, "schedules", "schedule", self.schedules)

    def _add_entries(self, document: _Part, title: str, kind: str, kept: dict[str, Entry]) -> None:
        nodes = document.listed(title) or []
        if len(kept) + len(nodes) > MOST_ENTRIES:
            words = f"{title}: more than {MOST_ENTRIES:,} cannot be imported at once: split the import"
            document.complain(words, document.node.inside(title))
            return
        for node in nodes:
            entry = document.inner(node).entry(kind)
            if entry and (twin := kept.setdefault(entry.key, entry)) is not entry:
                words = f"name: the {kind} at {twin.place} has the same name: rename or remove one of the two"
                self.problems.append(entry.problem(words, "name"))


@dataclass(frozen=True)
class _Part:
    """An object in a file: the whole document, an entry or a step."""

    file: str
    node: Node
    where: str
    problems: list[Problem]

    @property
    def is_object(self) -> bool:
        return isinstance(self.node.value, dict)

    def entry(self, kind: str) -> Entry | None:
        """Return the entry, or None if its name or its steps cannot be read."""
        name = self.node.inside("name").value if self.is_object else None
        if not isinstance(name, str) or not name.strip():
            self.complain(f"each {kind} must be an object with a name: - name: …")
            return None
        labelled = self.inner(self.node, f"{kind} “{name}”: ")
        if kind in PLAIN:
            return Entry(kind, name, labelled.given(PLAIN[kind]), [], self.file, self.node)
        shape = {**SCHEDULE, **WHEN_NEW}
        given, steps = labelled.given(shape, "steps"), labelled.steps()
        return None if steps is None else Entry(kind, name, given, steps, self.file, self.node)

    def given(self, shape: Shape, *others: str) -> dict[str, Any]:
        """Return the values that have the right type; report all other values and unknown keys as problems.

        `shape` is a dict from key to model field. `others` are keys that are allowed, but not returned.
        """
        self.refuse_unknown([*shape, *others])
        known: dict[str, Node] = {key: node for key, node in self.node.value.items() if key in shape}
        values = {key: node.plain() for key, node in known.items()}
        wrong = {key: _complaint(shape[key], value) for key, value in values.items()}
        for key, complaint in wrong.items():
            if complaint:
                self.complain(f"{key}: {complaint}", known[key])
        return {key: value for key, value in values.items() if not wrong[key]}

    def steps(self) -> list[dict[str, Any]] | None:
        """Return the steps, or None if they are not a list of objects."""
        nodes = self.listed("steps")
        if nodes is None:
            return None
        parts = [self.inner(node, f"steps: Step {number}: ") for number, node in enumerate(nodes, 1)]
        for part in parts:
            if not part.is_object:
                part.complain("expected keys and values, such as name: Load")
                return None
            if len(parts) > 1 and "index" not in part.node.value:
                part.complain(
                    "index: is missing: give each step an index; steps with the same index run side by side"
                )
        return [part.given({**STEP, **REFERENCE}) for part in parts]

    def listed(self, key: str) -> list[Node] | None:
        inner = self.node.value.get(key, Node([], self.node.line, self.node.path))
        if isinstance(inner.value, list):
            return inner.value
        found = "nothing" if inner.value is None else shown(inner.plain())
        self.complain(f"{key}: expected a list, found {found}", inner)
        return None

    def refuse_unknown(self, known: Sequence[str]) -> None:
        for key, node in self.node.value.items():
            if key not in known:
                self.complain(f"unknown key “{key[:60]}”; {_advice(key, known)}", node)

    def inner(self, node: Node, label: str = "") -> _Part:
        return _Part(self.file, node, self.where + label, self.problems)

    def complain(self, words: str, at: Node | None = None) -> None:
        node = at or self.node
        self.problems.append(Problem(self.file, node.line, self.where + words, node.path))


def _version_complaint(document: Node) -> str:
    match document.inside("version").value if "version" in document.value else None:
        case bool() | str() | float() | list() | dict():
            return f"version: expected a whole number, such as version: {VERSION}"
        case None:
            return f"version: is missing: write version: {VERSION}"
        case version if version > VERSION:
            return f"version: {version} is too new: this JIM reads version {VERSION}; use a newer JIM"
        case version if version < VERSION:
            return f"version: {version} is not supported; write version: {VERSION}"
    return ""


def _complaint(field: models.Field[Any, Any], value: Any) -> str:
    if value is None and not field.null:
        return "is empty: write a value, or leave the key out"
    return type_complaint(field, value)


def _advice(key: str, known: Sequence[str]) -> str:
    if key in {each.name for each in Schedule._meta.get_fields()} and "steps" in known:
        return "files cannot set the state of a schedule"
    return hint(key, known)


def _mentioned(node: Node, text: str) -> Node | None:
    """Return the node of the first key or string in `node` that an error message mentions, or None."""
    if isinstance(node.value, str):
        return node if shown(node.value) in text else None
    for key, inner in _inside(node):
        if key and shown(key) in text:
            return inner
        if found := _mentioned(inner, text):
            return found
    return None


def _inside(node: Node) -> Iterable[tuple[str, Node]]:
    match node.value:
        case dict():
            return node.value.items()
        case list():
            return [("", inner) for inner in node.value]
    return ()
