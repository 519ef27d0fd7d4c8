"""A draft, read as a whole: what it defines, and what is wrong with it, by field."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models.functions import Lower

from operations.field_errors import FieldError, field_errors
from schedules.models import Schedule, TaskTemplate
from schedules.models.step import check_steps
from schedules.registry import choices as type_choices

from .cards import Card
from .complaints import Complaints, placed
from .definition import DefinitionForm
from .draft import Draft, Part
from .plan import groups_of
from .steps import FROM_TEMPLATE, FROM_TYPE, chosen, written
from .times import MOST_OFFERED, Times


class Reading:
    def __init__(self, draft: Draft, *, schedule: Schedule | None, now: datetime) -> None:
        self.schedule, self.now = schedule, now
        self.draft, self.templates = prepared(draft, schedule=schedule)
        self._complaints = Complaints()
        self.form = DefinitionForm(draft.own, schedule=schedule)
        self.times = Times(draft, self._complaints, schedule=schedule, now=now)
        self.steps = self._read_steps()
        for name, texts in self.form.errors.items():
            self.complain("name" if name == NON_FIELD_ERRORS else name, *map(str, texts))

    def complain(self, name: str, *texts: str) -> None:
        for text in texts:
            self._complaints.add(name, text)

    def refuse(self, error: ValidationError) -> None:
        """Show what the model said when it was asked to save."""
        for each in field_errors(error):
            match each.path:
                case ("steps", *inner):
                    self._place(each._replace(path=tuple(inner)))
                case ("spec", *_):
                    self.complain("rules", each.message)
                case (name, *_):
                    self.complain(str(name), each.message)
                case _:
                    self.complain("name", each.message)

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
        wrong = [name for name in self.errors if name == prefix or name.startswith(f"{prefix}-")]
        return Card(part, self.templates, offered=lambda: self.offered, wrong=wrong)

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
        for error in check_steps(steps, self.templates):
            self._place(error)
        return steps

    def _place(self, error: FieldError) -> None:
        match error.path:
            case (int(place), *inner):
                self.complain(*placed(self.draft.steps[place], self.templates, inner, error.message))
            case _:
                self.complain("steps", error.message)


def prepared(draft: Draft, *, schedule: Schedule | None) -> tuple[Draft, dict[str, TaskTemplate]]:
    """With its steps in order, each with the settings of what it runs now, and the templates they name."""
    templates = _templates(draft.steps, schedule)
    steps = [Part(part.key, chosen(part.texts, templates)) for part in draft.steps]
    in_order = [step for group in groups_of(steps) for step in group]
    return Draft(draft.own, draft.rules, draft.exclusions, in_order), templates


def _templates(steps: Sequence[Part], schedule: Schedule | None) -> dict[str, TaskTemplate]:
    runs = [text for part in steps for name, text in part.texts.items() if name == "runs"]
    named = [
        {"template": text.removeprefix(FROM_TEMPLATE)} for text in runs if text.startswith(FROM_TEMPLATE)
    ]
    return TaskTemplate.objects.needed_by(named, schedule=schedule)
