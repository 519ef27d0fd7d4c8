"""The content of the schedule editor's page: the preview, the plan, and the places of errors and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from schedules.form_fields import Tags
from schedules.forms.spec_items import SpecItemForm
from schedules.models import Secret
from schedules.models.definition import in_words
from schedules.models.occurrence import named_time
from schedules.models.step import TaskFields
from schedules.previews import Preview, preview
from schedules.registry import step_types
from schedules.spec import SpecError
from schedules.spec.zones import zone_of
from text import words
from web.saving import Mistake, anchor_of

from .data import MOST_OPEN
from .reading import Card, Reading
from .saving import EditConflict, conflict_of

# Labels for errors that do not belong to a single field; the first is about the whole schedule.
SECTIONS = {"": "This schedule", "rules": "When it runs", "exclude": "Except", "steps": "What it runs"}
# The order of fields on the page; policies come last.
ORDER = (
    *("", "name", "tags", "description", "memo", "rules", "time_zone", "topics"),
    *("exclude", "start_at", "end_at", "jitter", "dst", "steps"),
)
TIMES = 10
COMPARED = 50
MOST_NAMED = 10
# Errors of these sections are shown immediately: they come from input, not from fields that are still empty.
AT_ONCE = ("", "rules", "exclude")
_NAME = re.compile(r"[\w-]{1,100}", re.ASCII)


def mistakes_of(reading: Reading) -> list[Mistake]:
    """Return the errors of all forms, in the order in which the page shows the fields."""
    parts = dict(_parts(reading))
    names = sorted(reading.errors, key=_rank)
    return [Mistake(*_place(reading, parts, name), reading.errors[name]) for name in names]


def warnings_of(reading: Reading) -> list[Mistake]:
    """Return warnings about possible mistakes in the steps. Steps with warnings can be saved."""
    parts = dict(_parts(reading))
    return [
        Mistake(*_place(reading, parts, card.setting(name)), [text])
        for group in reading.cards
        for card in group
        if (step := card.step)
        for name, text in warnings_about(step).items()
    ]


def warnings_about(task: TaskFields) -> Mapping[str, str]:
    """Return a dict from the name of a setting to the warning about this setting."""
    kind = step_types.get(task.step_type)
    return kind.warnings(task.config) if kind and isinstance(task.config, dict) else {}


def undefined_secrets(tasks: Iterable[TaskFields]) -> list[str]:
    """Return the names of secrets that these tasks refer to but that do not exist."""
    named = {ref.name for task in tasks for _, ref in task.references() if ref.kind == "secret"}
    return sorted(named - set(Secret.objects.names())) if named else []


def _rank(name: str) -> int:
    what = name.partition("-")[0]
    return ORDER.index(what) if what in ORDER else len(ORDER)


def _parts(reading: Reading) -> Iterator[tuple[str, SpecItemForm | Card]]:
    for form in (*reading.times.rules.item_forms, *reading.times.exclusions.item_forms):
        yield str(form.prefix), form
    for group in reading.cards:
        for card in group:
            yield card.prefix, card


def _place(reading: Reading, parts: dict[str, SpecItemForm | Card], name: str) -> tuple[str, str]:
    part = parts.get("-".join(name.split("-")[:2]))
    if isinstance(part, Card):
        called = part.name or "New step"
        return f"{called}: {part.label_of(name)}" if name != part.prefix else called, part.anchor_of(name)
    if isinstance(part, SpecItemForm):
        return part.title, anchor_of(part.lines[0]) if part.lines else f"error-{name}"
    if name in reading.form.fields:
        bound = reading.form[name]
        return str(bound.label), anchor_of(bound)
    return SECTIONS.get(name, name), f"error-{name}"


@dataclass(frozen=True)
class Time:
    """The time of an upcoming run. `clock` is this time in the schedule's time zone."""

    at: datetime
    clock: str
    starts: str
    note: str = ""


def checked(reading: Reading, *, knows_code: bool) -> Shown:
    """Return the content of the page after “Check” was pressed: all errors and warnings, with a summary.

    `knows_code` says whether the user has the permission that is needed to see warnings.
    """
    warnings = warnings_of(reading) if knows_code else []
    if not reading.is_right:
        said = "The fields that need fixing are listed at the top of the form."
    elif warnings:
        said = f"No errors, but {_count(warnings, 'warning')}. Nothing has been saved yet."
    else:
        looked_at = f"name, times, {_count(reading.steps, 'step')} and policies"
        said = f"No problems found in the {looked_at}. Nothing has been saved yet."
    return Shown(reading, is_checked=True, said=said, warnings=warnings)


class Shown:
    """The page's content. Unless `is_checked`, errors of fields that the user has not touched are hidden."""

    def __init__(
        self, reading: Reading, *, is_checked: bool, said: str = "", warnings: Sequence[Mistake] = ()
    ) -> None:
        self.reading, self.is_checked, self.said, self.warnings = reading, is_checked, said, warnings
        self.touched = _names(reading.data.get("touched", ""))

    def errors_of(self, name: str) -> Sequence[str]:
        """Return the errors to show at a field or a part of the form, or none while they are still hidden."""
        is_shown = self.is_checked or name in self._touched_parts or name in AT_ONCE
        return self.reading.errors.get(name, []) if is_shown else []

    @cached_property
    def _touched_parts(self) -> set[str]:
        """Return the names of the touched fields and of the parts of the form that they belong to."""
        names = [name.split("-") for name in self.touched]
        return {"-".join(name[:end]) for name in names for end in range(1, len(name) + 1)}

    @cached_property
    def slots(self) -> list[tuple[str, Sequence[str]]]:
        """Return the names of the fields and sections whose errors may have changed, each with its errors."""
        parts = {"-".join(name.split("-")[:2]) for name in self.touched if name.count("-") > 1}
        names = {*self.touched, *parts, *SECTIONS, *(self.reading.errors if self.is_checked else ())}
        return [(name, self.errors_of(name)) for name in sorted(names)]

    @cached_property
    def mistakes(self) -> list[Mistake]:
        """Return all errors in the order of the page, or none before the form has been checked."""
        return mistakes_of(self.reading) if self.is_checked else []

    @cached_property
    def missing_secrets(self) -> list[str]:
        return undefined_secrets(step for group in self.cards for card in group if (step := card.step))

    @cached_property
    def edit_conflict(self) -> EditConflict | None:
        return conflict_of(self.reading)

    @cached_property
    def preview(self) -> Preview | None:
        """Return the upcoming times, or None if they cannot be computed."""
        spec, schedule = self.reading.times.readable, self.reading.schedule
        if spec is None or (self.is_partial and spec.is_manual):
            return None
        seed = schedule.jitter_seed if schedule else self.reading.data.get("name", "").strip()
        is_other = not self.is_partial and schedule and spec.as_json() != schedule.spec
        instead_of = schedule if is_other else None
        try:
            return preview(
                spec.as_json(), count=COMPARED, now=self.reading.now, seed=seed, instead_of=instead_of
            )
        except SpecError:
            return None

    @property
    def sentence(self) -> str:
        """Describe in words what starts the schedule, without rules that cannot be read."""
        spec = self.reading.times.readable
        topics = Tags().to_python(self.reading.data.get("topics", ""))
        return in_words(spec, topics) if spec else ""

    @property
    def is_partial(self) -> bool:
        """Return whether the preview leaves out rules that cannot be read."""
        return self.reading.times.spec is None

    @property
    def times(self) -> list[Time]:
        schedule = self.reading.schedule
        skips = schedule.skips if schedule else {}
        rows = self.preview.upcoming[:TIMES] if self.preview else []
        return [self._time(row.at, row.due_at, row.note, skips.get(named_time(row.at))) for row in rows]

    def _time(self, at: datetime, due_at: datetime, note: str, skipped_by: str | None) -> Time:
        starts = self._clock(due_at) if due_at != at else ""
        return Time(at, self._clock(at), starts, f"skipped by {skipped_by}" if skipped_by else note)

    def _clock(self, at: datetime) -> str:
        return words.on_the_clock(at, self.zone).removesuffix(":00")

    @property
    def zone(self) -> Any:
        return zone_of(self.preview.time_zone if self.preview else "UTC")

    @property
    def gone(self) -> list[Time]:
        difference = self.preview.difference if self.preview else None
        return [Time(at, self._clock(at), "") for at in (difference.gone if difference else ())]

    @property
    def come(self) -> list[Time]:
        difference = self.preview.difference if self.preview else None
        return [Time(at, self._clock(at), "") for at in (difference.added if difference else ())]

    compared = COMPARED
    most_named = MOST_NAMED

    @property
    def lanes(self) -> list[list[str]]:
        """Return the names of the steps of each group, in the order of the plan."""
        return [[card.name or "?" for card in group] for group in self.cards]

    @property
    def is_long(self) -> bool:
        """Return whether the plan is so long that its steps are opened one by one."""
        return len(self.reading.steps) > MOST_OPEN

    @cached_property
    def cards(self) -> Any:
        return self.reading.cards


def _count(things: Sequence[object], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


def _names(text: str) -> set[str]:
    return {name for name in text.split() if _NAME.fullmatch(name)}
