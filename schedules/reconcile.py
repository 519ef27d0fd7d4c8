"""Applies imported files to the database: compares first, then makes all changes or none."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, NamedTuple

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q

from operations.initiator import Initiator

from . import permissions
from .as_code import (
    CALENDAR,
    CHUNK,
    SCHEDULE,
    TEMPLATE,
    Shape,
    canonical_spec,
    difference,
    started_in_words,
)
from .code_files import Entry, Library, Problem
from .models import Conflict, Refused, Schedule, SharedCalendar, Step, TaskTemplate, shared_calendar, template
from .models.template import same_json
from .spec.wording import counted

KINDS = ("calendar", "template", "schedule")
AGAIN = "was changed in the meantime: run the import again"


@dataclass(frozen=True)
class Author:
    """The initiator of an import and their permissions; by default, importschedules with all permissions."""

    initiator: Initiator = field(default_factory=partial(Initiator.command, "importschedules"))
    may: permissions.May = permissions.anything


@dataclass(frozen=True)
class Outcome:
    """The changes that were made, or that a dry run would make, and the problems that prevent them.

    `unchanged` is the number of entries that match the stored objects. `others` is the number of open
    schedules that the files do not mention.
    """

    changes: list[Change]
    unchanged: int
    others: int
    problems: list[Problem]

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as values for JSON; the `lines` of a changed entry show its differences."""
        changes = [
            {
                "kind": change.entry.kind,
                "name": change.entry.name,
                "is_new": change.is_new,
                "lines": [] if change.is_new else list(difference(change.before, change.after)),
            }
            for change in self.changes
        ]
        return {"changes": changes, "unchanged": self.unchanged, "others": self.others}


Along = Callable[[Sequence["Change"]], Iterable["Change"]]


def reconcile(
    library: Library,
    *,
    author: Author,
    now: datetime,
    dry_run: bool = False,
    paused: bool = False,
    along: Along = iter,
) -> Outcome:
    """Apply all entries of a library, or none if there are problems; return the outcome.

    With `dry_run`, all changes are rolled back. With `paused`, new schedules start paused. `along` is given
    the changes and yields each of them again; it can show progress, for example.
    """
    calendars, templates = _compared_calendars(library), _compared_templates(library)
    proposed = {change.after["name"]: TaskTemplate(**change.after) for change in templates}
    schedules = _compared_schedules(library, _stored_templates() | proposed, paused=paused)
    compared = [*calendars, *templates, *schedules]
    changes: list[Change] = [change for change in compared if change.is_needed]
    others = Schedule.objects.open().count() - sum(not change.is_new for change in schedules)
    problems = [*library.problems, *(problem for change in changes for problem in change.misfits(author))]
    if changes:
        problems += _apply(changes, author=author, now=now, keep=not (dry_run or problems), along=along)
    return Outcome(changes, len(compared) - len(changes), others, problems)


def _apply(
    changes: Sequence[Change], *, author: Author, now: datetime, keep: bool, along: Along
) -> list[Problem]:
    broken: set[EntryName] = set()
    with transaction.atomic():
        problems = _lock(changes)
        for change in () if problems else along(_in_order(changes)):
            if broken.isdisjoint(change.needs):  # else this would only repeat their errors
                found = change.attempt(author, now)
                problems += found
                broken |= {EntryName(change.entry.kind, change.entry.name)} if found else set()
        if problems or not keep:
            transaction.set_rollback(True)
    return problems


def _in_order(changes: Sequence[Change]) -> list[Change]:
    """Return the changes in a fixed order: calendars and templates before the schedules that use them."""
    return sorted(changes, key=lambda change: (KINDS.index(change.entry.kind), change.entry.key))


def _lock(changes: Sequence[Change]) -> list[Problem]:
    """Lock the rows that will change, schedules last; return a problem for each row changed meanwhile."""
    old = [change for change in changes if not change.is_new]
    needed = {thing for change in changes for thing in change.needs}
    pks = {kind: [change.pk for change in old if change.entry.kind == kind] for kind in KINDS}
    tokens: dict[tuple[str, int], int] = {}
    for kind, rows in (
        ("calendar", SharedCalendar.objects.lock()),
        ("template", TaskTemplate.objects.lock()),
    ):
        names = [thing.name for thing in needed if thing.kind == kind]
        held = rows.filter(Q(pk__in=pks[kind]) | Q(name__in=names)).order_by("pk")
        tokens |= {(kind, pk): token for pk, token in held.values_list("pk", "token")}
    found = Schedule.objects.open().values_list("pk", flat=True)
    users = {*found.filter(shared_calendars__in=pks["calendar"])}
    users |= {*found.filter(steps__template__in=pks["template"])}
    also = Schedule.objects.lock().filter(pk__in={*pks["schedule"], *users}).order_by("pk")
    tokens |= {("schedule", pk): token for pk, token in also.values_list("pk", "token")}
    moved = [change for change in old if tokens.get((change.entry.kind, change.pk)) != change.token]
    return [change.entry.problem(AGAIN, code="changed") for change in moved]


class EntryName(NamedTuple):
    kind: str
    name: str


@dataclass
class Change(ABC):
    """A possible change: an entry of a file, and the stored object with the same name, if there is one."""

    entry: Entry
    stored: Any
    before: dict[str, Any]
    after: dict[str, Any]

    ADD: ClassVar[str]
    EDIT: ClassVar[str]

    @property
    def is_needed(self) -> bool:
        return not same_json(self.before, self.after)

    @property
    def is_new(self) -> bool:
        return self.stored is None

    @property
    def pk(self) -> int:
        return int(self.stored.pk)

    @property
    def token(self) -> int:
        return int(self.stored.token)

    @property
    def needs(self) -> set[EntryName]:
        """Return the calendars and templates that the change depends on."""
        return set()

    def misfits(self, author: Author) -> Iterator[Problem]:
        """Yield the problems that are known before anything is changed."""
        needed = self.ADD if self.is_new else self.EDIT
        if not author.may(needed):
            words = f"{author.initiator.name} needs the permission {needed}"
            yield self.entry.problem(words, code="forbidden")

    def attempt(self, author: Author, now: datetime) -> list[Problem]:
        try:
            self.apply(author, now)
        except permissions.NotYours as error:
            return self.entry.problems(error, code="forbidden")
        except ValidationError as error:
            return self.entry.problems(error)
        except Refused as refused:
            return [self.entry.problem(str(refused))]
        except (Conflict, IntegrityError):
            return [self.entry.problem(AGAIN, code="changed")]
        return []

    @abstractmethod
    def apply(self, author: Author, now: datetime) -> None: ...

    @abstractmethod
    def in_words(self) -> str: ...


class SharedChange(Change):
    """A change of a calendar or template."""

    def misfits(self, author: Author) -> Iterator[Problem]:
        yield from super().misfits(author)
        if not self.is_new and self.after["name"] != self.stored.name:
            yield self.entry.problem(
                f"name: the stored name is “{self.stored.name}”: use the same spelling", "name"
            )


class CalendarChange(SharedChange):
    ADD, EDIT = "schedules.add_sharedcalendar", "schedules.change_sharedcalendar"

    def apply(self, author: Author, now: datetime) -> None:
        changes = {name: self.after[name] for name in SharedCalendar.EDITABLE}
        if self.is_new:
            SharedCalendar.objects.define(self.after["name"], **changes, initiator=author.initiator, now=now)
        else:
            self.stored.edit(token=self.token, changes=changes, initiator=author.initiator, now=now)

    def in_words(self) -> str:
        return SharedCalendar(excluded=self.after["excluded"]).describe()


class TemplateChange(SharedChange):
    ADD, EDIT = "schedules.add_tasktemplate", "schedules.change_tasktemplate"

    def apply(self, author: Author, now: datetime) -> None:
        by: dict[str, Any] = {
            "initiator": author.initiator,
            "now": now,
            "may": author.may,
        }
        if self.is_new:
            TaskTemplate.objects.define(**self.after, **by)
        else:
            differing = [name for name in self.after if not same_json(self.after[name], self.before[name])]
            self.stored.edit(token=self.token, changes={name: self.after[name] for name in differing}, **by)

    def in_words(self) -> str:
        return f"steps of the type {self.after['step_type']}"


@dataclass
class ScheduleChange(Change):
    steps: list[dict[str, Any]]
    templates: Mapping[str, TaskTemplate]
    paused: bool

    ADD, EDIT = "schedules.add_schedule", "schedules.change_schedule"

    @property
    def needs(self) -> set[EntryName]:
        calendars = {EntryName("calendar", name) for name in shared_calendar.names_in(self.after["spec"])}
        return calendars | {EntryName("template", name) for name in template.names_in(self.steps)}

    def apply(self, author: Author, now: datetime) -> None:
        fields = {name: value for name, value in self.after.items() if name != "steps"}
        if self.is_new:
            fields["remaining"] = self.entry.given.get("remaining")
            Schedule.objects.define(
                **fields,
                steps=self.steps,
                paused=self.paused,
                initiator=author.initiator,
                now=now,
                may=author.may,
            )
            return
        # Read the schedule again: this import may have edited a calendar or template, and so its steps and
        # token.
        schedule = Schedule.objects.get(pk=self.pk)
        schedule.edit(
            token=schedule.token,
            changes={name: fields[name] for name in fields if not same_json(fields[name], self.before[name])},
            steps=None if same_json(self.after["steps"], self.before["steps"]) else self.steps,
            initiator=author.initiator,
            now=now,
            may=author.may,
        )

    def in_words(self) -> str:
        paused = ", paused" if self.paused else ""
        return f"{started_in_words(self.after)}; {counted(len(self.steps), 'step')}{paused}"


def _compared_calendars(library: Library) -> list[CalendarChange]:
    stored = {calendar.name.lower(): calendar for calendar in SharedCalendar.objects.all()}
    changes = []
    for key, entry in library.calendars.items():
        calendar = stored.get(key)
        before = {"name": calendar.name, **calendar.definition()} if calendar else {}
        changes.append(CalendarChange(entry, calendar, before, _canonical_calendar(entry)))
    return changes


def _canonical_calendar(entry: Entry) -> dict[str, Any]:
    calendar = SharedCalendar(**_defaults(CALENDAR) | entry.given)
    _cleaned(calendar.clean)
    return {"name": calendar.name, **calendar.definition()}


def _compared_templates(library: Library) -> list[TemplateChange]:
    stored = {name.lower(): each for name, each in _stored_templates().items()} if library.templates else {}
    changes = []
    for key, entry in library.templates.items():
        known = stored.get(key)
        before = {"name": known.name, **known.definition()} if known else {}
        changes.append(TemplateChange(entry, known, before, _canonical_template(entry)))
    return changes


def _stored_templates() -> dict[str, TaskTemplate]:
    return {each.name: each for each in TaskTemplate.objects.known()}


def _canonical_template(entry: Entry) -> dict[str, Any]:
    made = TaskTemplate(**_defaults(TEMPLATE) | entry.given)
    _cleaned(made.clean)
    return {"name": made.name, **made.definition()}


def _compared_schedules(
    library: Library, templates: Mapping[str, TaskTemplate], *, paused: bool
) -> list[ScheduleChange]:
    stored = _stored(library.schedules.keys())
    changes = []
    for key, entry in library.schedules.items():
        schedule = stored.get(entry.name) or stored.get(key)
        before = schedule.definition() if schedule else {}
        steps = [_canonical_step(step) for step in entry.steps]
        after = _canonical_fields(entry) | {"steps": sorted(steps, key=lambda step: step["index"])}
        begins_paused = paused or entry.given.get("paused", False)
        changes.append(ScheduleChange(entry, schedule, before, after, steps, templates, begins_paused))
    return changes


def _stored(keys: Iterable[str]) -> dict[str, Schedule]:
    """Return the open schedules with these lower-case names, as a dict by exact and by lower-case name."""
    wanted = set(keys)
    names = Schedule.objects.open().values_list("pk", "name")
    pks = [pk for pk, name in names if name.lower() in wanted]
    chunks = [pks[start : start + CHUNK] for start in range(0, len(pks), CHUNK)]
    rows = (
        row for chunk in chunks for row in Schedule.objects.filter(pk__in=chunk).prefetch_related("steps")
    )
    found: dict[str, Schedule] = {}
    for schedule in rows:
        # SQLite ignores the case of ASCII only, so two names can differ in the case of other letters.
        found.setdefault(schedule.name.lower(), schedule)
        found[schedule.name] = schedule
    return found


def _canonical_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields as they would be stored. Invalid values are kept, so that the model refuses them."""
    given = {name: value for name, value in entry.given.items() if name in SCHEDULE}
    schedule = Schedule(**_defaults(SCHEDULE) | given)
    _cleaned(schedule.clean)
    spec = canonical_spec(schedule.spec)
    fields = {name: getattr(schedule, name) for name in SCHEDULE}
    return fields if spec is None else fields | {"spec": spec}


def _canonical_step(data: dict[str, Any]) -> dict[str, Any]:
    if data.get("template") is not None:
        name = unicodedata.normalize("NFC", data.get("name", "").strip())
        return {**data, "index": data.get("index", 0), "name": name}
    step = Step(**{name: value for name, value in data.items() if name != "template"})
    _cleaned(step.clean)
    return step.as_json()


def _cleaned(clean: Callable[[], None]) -> None:
    with suppress(ValidationError):
        clean()


def _defaults(shape: Shape) -> dict[str, Any]:
    return {name: field.get_default() for name, field in shape.items()}
