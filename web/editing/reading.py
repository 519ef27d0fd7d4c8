"""A draft, read as a whole: what it defines, and what is wrong with it, by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS
from django.db.models.functions import Lower

from schedules.models import Schedule, TaskTemplate
from schedules.models.step import check_steps
from schedules.registry import choices as type_choices

from .cards import Card
from .complaints import Complaints
from .definition import DefinitionForm
from .draft import Draft, Part
from .plan import groups_of
from .settings import PREFIX
from .steps import FROM_TEMPLATE, FROM_TYPE, POLICIES, chosen, is_json, kind_of, written
from .times import MOST_OFFERED, Times


class Reading:
    def __init__(self, draft: Draft, *, schedule: Schedule | None, now: datetime) -> None:
        self.schedule, self.now = schedule, now
        self.templates = _templates(draft.steps, schedule)
        steps = [Part(part.key, chosen(part.texts, self.templates)) for part in draft.steps]
        in_order = [step for group in groups_of(steps) for step in group]
        self.draft = Draft(draft.own, draft.rules, draft.exclusions, in_order)
        self._complaints = Complaints()
        self.form = DefinitionForm(draft.own, schedule=schedule)
        self.times = Times(draft, self._complaints, schedule=schedule, now=now)
        self.steps = self._read_steps()
        for name, texts in self.form.errors.items():
            self.complain("name" if name == NON_FIELD_ERRORS else name, *map(str, texts))

    def complain(self, name: str, *texts: str) -> None:
        for text in texts:
            self._complaints.add(name, text)

    @property
    def errors(self) -> dict[str, list[str]]:
        return self._complaints.found

    @property
    def is_right(self) -> bool:
        return not self.errors

    @property
    def definition(self) -> dict[str, Any]:
        """Without the steps; whole only if nothing is wrong with it."""
        return self.form.definition | ({"spec": self.times.spec.as_json()} if self.times.spec else {})

    @property
    def cards(self) -> list[list[Card]]:
        """Groups of steps."""
        return [[self._card(part) for part in group] for group in groups_of(self.draft.steps)]

    def _card(self, part: Part) -> Card:
        prefix = f"step-{part.key}"
        is_wrong = any(name == prefix or name.startswith(f"{prefix}-") for name in self.errors)
        return Card(part, self.templates, offered=lambda: self.offered, is_wrong=is_wrong)

    @cached_property
    def offered(self) -> list[tuple[str, Any]]:
        """What a step can run: types and templates."""
        names = TaskTemplate.objects.active().order_by(Lower("name")).values_list("name", flat=True)
        types = [(f"{FROM_TYPE}{name}", title) for name, title in type_choices()]
        templates = [(f"{FROM_TEMPLATE}{name}", name) for name in names[:MOST_OFFERED]]
        return [("Step types", types), *([("Templates", templates)] if templates else [])]

    def _read_steps(self) -> list[dict[str, Any]]:
        steps = []
        for part in self.draft.steps:
            data, wrong = written(part.texts, self.templates)
            steps.append(data)
            for name, text in wrong.items():
                self.complain(f"step-{part.key}-{name}", text)
        for complaint in check_steps(steps, self.templates):
            self._place_complaint(complaint, steps)
        return steps

    def _place_complaint(self, complaint: str, steps: Sequence[Mapping[str, Any]]) -> None:
        """The model speaks of steps by their numbers and names."""
        pairs = zip(self.draft.steps, steps, strict=True)
        for number, (part, step) in enumerate(pairs, 1):
            label = f"Step {number} ({step['name']}): " if step["name"] else f"Step {number}: "
            if complaint.startswith(label):
                self.complain(*self._field_of(part, complaint.removeprefix(label)))
                return
        self.complain("steps", complaint)

    def _field_of(self, part: Part, complaint: str) -> tuple[str, str]:
        prefix = f"step-{part.key}"
        field, colon, text = complaint.partition(": ")
        if not colon:
            return prefix, complaint
        if field == "config":
            return self._setting_of(part, text)
        if field in ("step_type", "template"):
            return f"{prefix}-runs", text if part.texts.get("runs") else "Choose what it runs."
        return (f"{prefix}-{field}" if field in ("name", *POLICIES) else prefix), text

    def _setting_of(self, part: Part, complaint: str) -> tuple[str, str]:
        prefix = f"step-{part.key}"
        if is_json(part.texts, self.templates):
            return f"{prefix}-config", complaint
        kind = kind_of(part.texts, self.templates)
        setting, _, text = complaint.partition(": ")
        known = {field.name for field in kind.fields} if kind else set()
        return (f"{prefix}-{PREFIX}{setting}", text) if setting in known else (prefix, complaint)


def _templates(steps: Sequence[Part], schedule: Schedule | None) -> dict[str, TaskTemplate]:
    runs = [text for part in steps for name, text in part.texts.items() if name == "runs"]
    named = [
        {"template": text.removeprefix(FROM_TEMPLATE)} for text in runs if text.startswith(FROM_TEMPLATE)
    ]
    return TaskTemplate.objects.needed_by(named, schedule=schedule)
