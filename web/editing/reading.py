"""A draft, read as a whole: what it defines, and what is wrong with it, by field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS
from django.db.models.functions import Lower

from schedules.models import Schedule, TaskTemplate
from schedules.models.step import check_steps
from schedules.registry import choices as type_choices

from .complaints import Complaints
from .definition import DefinitionForm
from .draft import Draft, Part
from .fields import choice, line, lines
from .plan import groups_of
from .settings import PREFIX, settings_form
from .steps import FROM_TEMPLATE, FROM_TYPE, POLICIES, chosen, is_json, kind_of, policy_form, written
from .times import MOST_OFFERED, Times

TYPED = (forms.TextInput, forms.Textarea)


@dataclass(frozen=True)
class Card:
    """One step, as the page shows it."""

    part: Part
    prefix: str
    head: forms.Form
    policies: forms.Form
    settings: forms.Form | None
    is_json: bool
    leftover: Mapping[str, str]
    title: str
    summary: str
    template: TaskTemplate | None
    is_wrong: bool

    @property
    def key(self) -> str:
        return self.part.key

    @property
    def is_open(self) -> bool:
        """One that has to be filled in, or put right."""
        return self.is_wrong or bool(self.texts.get("new")) or not self.texts.get("name")

    @property
    def texts(self) -> Mapping[str, str]:
        return self.part.texts


class HeadForm(forms.Form):
    name = line("Name", help="What tells it from the others of this plan.", code=False)
    runs = choice("Runs", [])
    config = lines("Settings as JSON", rows=6)


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

    def _card(self, part: Part) -> Card:
        prefix, texts = f"step-{part.key}", part.texts
        kind, as_json = kind_of(texts, self.templates), is_json(texts, self.templates)
        drawn = settings_form(kind, prefix, texts) if kind and not as_json else None
        names = set(drawn.fields) if drawn else set()
        template = self.templates.get(texts.get("runs", "").removeprefix(FROM_TEMPLATE))
        return Card(
            part=part,
            prefix=prefix,
            head=self._head(prefix, texts),
            policies=policy_form(prefix, texts),
            settings=drawn,
            is_json=as_json,
            leftover={
                name: text for name, text in texts.items() if name.startswith(PREFIX) and name not in names
            },
            title=template.name
            if template
            else kind.title
            if kind
            else texts.get("runs", "").partition(":")[2],
            summary=_summary(drawn, texts),
            template=template,
            is_wrong=any(name == prefix or name.startswith(f"{prefix}-") for name in self.errors),
        )

    def _head(self, prefix: str, texts: Mapping[str, str]) -> forms.Form:
        runs = texts.get("runs", "")
        known = {value for _, group in self.offered for value, _ in group}
        missing = [] if not runs or runs in known else [(runs, f"{runs.partition(':')[2]} (not there)")]
        data = {f"{prefix}-{name}": text for name, text in texts.items()}
        form = HeadForm(data, prefix=prefix, use_required_attribute=False)
        widget = form.fields["runs"].widget
        assert isinstance(widget, forms.Select)
        widget.choices = [("", "choose…"), *self.offered, *missing]
        if texts.get("new"):
            form.fields["name"].widget.attrs["autofocus"] = True
        return form


def _templates(steps: Sequence[Part], schedule: Schedule | None) -> dict[str, TaskTemplate]:
    runs = [text for part in steps for name, text in part.texts.items() if name == "runs"]
    named = [
        {"template": text.removeprefix(FROM_TEMPLATE)} for text in runs if text.startswith(FROM_TEMPLATE)
    ]
    return TaskTemplate.objects.needed_by(named, schedule=schedule)


def _summary(drawn: forms.Form | None, texts: Mapping[str, str]) -> str:
    """What tells it from others: the first of its settings that has to be there."""
    fields = drawn.fields if drawn else {}
    typed = [name for name, field in fields.items() if isinstance(field.widget, TYPED)]
    needed = [name for name in typed if fields[name].widget.attrs.get("data-needed")]
    first = next((texts[name] for name in [*needed, *typed] if texts.get(name)), "")
    return first.strip().partition("\n")[0][:80]
