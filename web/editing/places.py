"""Where the page shows what is wrong with a draft, and what it calls these places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from schedules.forms.spec_items import SpecItemForm
from schedules.models import Secret
from schedules.models.step import TaskFields
from schedules.registry import step_types
from web.mistakes import Mistake, anchor_of

from .cards import Card
from .reading import Reading

# What is about no single field; the first has no heading of its own.
SECTIONS = {"": "This schedule", "rules": "When it runs", "exclude": "Except", "steps": "What it runs"}
# From top to bottom; policies come last.
ORDER = (
    *("", "name", "tags", "description", "memo", "rules", "time_zone", "topics"),
    *("exclude", "start_at", "end_at", "jitter", "dst", "steps"),
)


def mistakes_of(reading: Reading) -> list[Mistake]:
    """In the order of the page."""
    parts = dict(_parts(reading))
    names = sorted(reading.errors, key=_rank)
    return [Mistake(*_place(reading, parts, name), reading.errors[name]) for name in names]


def warnings_of(reading: Reading) -> list[Mistake]:
    """Return what may be a mistake in the steps; they can be saved all the same."""
    parts = dict(_parts(reading))
    return [
        Mistake(*_place(reading, parts, card.setting(name)), [text])
        for group in reading.cards
        for card in group
        if (step := card.step)
        for name, text in warnings_about(step).items()
    ]


def warnings_about(task: TaskFields) -> Mapping[str, str]:
    """By setting."""
    kind = step_types.get(task.step_type)
    return kind.warnings(task.config) if kind and isinstance(task.config, dict) else {}


def undefined_secrets(tasks: Iterable[TaskFields]) -> list[str]:
    """Those that settings refer to and that do not exist."""
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
