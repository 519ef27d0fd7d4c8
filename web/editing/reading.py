"""A draft, read as a whole: what it defines, and what is wrong with it, by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django import forms
from django.conf import settings
from django.core.exceptions import NON_FIELD_ERRORS
from django.db.models.functions import Lower

from schedules.models import Schedule, SharedCalendar, TaskTemplate
from schedules.models.step import check_steps
from schedules.registry import choices as type_choices
from schedules.spec import Spec, SpecError
from schedules.spec.spec import MOST_RULES

from .definition import BOUNDS, DefinitionForm
from .draft import Draft, Part
from .exclusions import Exclusion, Shared, exclusion_form
from .fields import choice, line, lines
from .plan import groups_of
from .rules import Rule, list_of, rule_form
from .settings import PREFIX, settings_form
from .steps import FROM_TEMPLATE, FROM_TYPE, POLICIES, chosen, is_json, kind_of, policy_form, written

MOST_OFFERED = 500


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
        self.errors: dict[str, list[str]] = {}
        self.form = DefinitionForm(draft.own, schedule=schedule)
        self.rules = [rule_form(part) for part in draft.rules]
        self.exclusions = [exclusion_form(part, self._calendar_names) for part in draft.exclusions]
        self.spec = self._read_spec()
        self.steps = self._read_steps()
        for name, texts in self.form.errors.items():
            self.complain("name" if name == NON_FIELD_ERRORS else name, *map(str, texts))

    def complain(self, name: str, *texts: str) -> None:
        said = self.errors.setdefault(name, [])
        said += [text for text in texts if text not in said]

    @property
    def is_right(self) -> bool:
        return not self.errors

    @property
    def definition(self) -> dict[str, Any]:
        """Without the steps; whole only if nothing is wrong with it."""
        return self.form.definition | ({"spec": self.spec.as_json()} if self.spec else {})

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

    @cached_property
    def _calendar_names(self) -> Sequence[str]:
        if not any(part.texts.get("kind") == Shared.kind for part in self.draft.exclusions):
            return ()
        return list(
            SharedCalendar.objects.order_by(Lower("name")).values_list("name", flat=True)[:MOST_OFFERED]
        )

    def _read_spec(self) -> Spec | None:
        data: dict[str, Any] = {name: self.draft.own[name] for name in BOUNDS if self.draft.own.get(name)}
        data |= {name: [] for name in (*MOST_RULES, "exclude")}
        items = list(self._items())
        for name, _, found in items:
            data[name] += found
        calendars = SharedCalendar.objects.named_in(data)
        clock = self._clock(data)
        for name, place, found in items:
            self._check_alone(place, {name: found, **clock}, calendars)
        return None if self.errors else self._whole(data, calendars)

    def _items(self) -> Iterator[tuple[str, str, list[object]]]:
        """The list of the spec, the place in the form, and what stands there."""
        forms: list[Rule | Exclusion] = [*self.rules, *self.exclusions]
        for form in forms:
            place = str(form.prefix)
            try:
                yield (list_of(form) if isinstance(form, Rule) else "exclude"), place, form.items()
            except SpecError as error:
                self.complain(place, _sentence(error.message))

    def _clock(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The time zone, if there is such a one."""
        clock = {name: data[name] for name in ("time_zone", "dst") if name in data}
        try:
            Spec.parse(clock)
        except SpecError as error:
            self.complain(error.field, _sentence(error.message))
            return {}
        return clock

    def _check_alone(self, place: str, data: dict[str, Any], calendars: Mapping[str, Any]) -> None:
        try:
            Spec.parse(data, calendars)
        except SpecError as error:
            self.complain(place, _sentence(error.message))

    def _whole(self, data: dict[str, Any], calendars: Mapping[str, Any]) -> Spec | None:
        try:
            spec = Spec.parse(data, calendars)
            if self.schedule is None or spec.as_json() != self.schedule.spec:
                spec.check(self.now, minimum_seconds=settings.JIM_MINIMUM_INTERVAL_SECONDS)
        except SpecError as error:
            self.complain(self._place(error.field), _sentence(error.message))
            return None
        return spec

    def _place(self, field: str) -> str:
        if field in BOUNDS:
            return field
        alone = [form for form in self.rules if list_of(form) == field]
        return str(alone[0].prefix) if len(alone) == 1 else "exclude" if field == "exclude" else "rules"

    def _read_steps(self) -> list[dict[str, Any]]:
        steps = []
        for part in self.draft.steps:
            data, wrong = written(part.texts, self.templates)
            steps.append(data)
            for name, text in wrong.items():
                self.complain(f"step-{part.key}-{name}", _sentence(text))
        for complaint in check_steps(steps, self.templates):
            self._place_complaint(complaint, steps)
        return steps

    def _place_complaint(self, complaint: str, steps: Sequence[Mapping[str, Any]]) -> None:
        """The model speaks of steps by their numbers and names."""
        pairs = zip(self.draft.steps, steps, strict=True)
        for number, (part, step) in enumerate(pairs, 1):
            label = f"Step {number} ({step['name']}): " if step["name"] else f"Step {number}: "
            if complaint.startswith(label):
                name, text = self._field_of(part, complaint.removeprefix(label))
                if name not in self.errors or not name.startswith(f"step-{part.key}-"):
                    self.complain(name, _sentence(text))
                return
        self.complain("steps", complaint)

    def _field_of(self, part: Part, complaint: str) -> tuple[str, str]:
        prefix = f"step-{part.key}"
        field, colon, text = complaint.partition(": ")
        if not colon:
            return prefix, complaint
        if field == "config":
            setting, colon, rest = text.partition(": ")
            kind = kind_of(part.texts, self.templates)
            if (
                colon
                and kind
                and not is_json(part.texts, self.templates)
                and setting in [f.name for f in kind.fields]
            ):
                return f"{prefix}-{PREFIX}{setting}", rest
            return (f"{prefix}-config" if is_json(part.texts, self.templates) else prefix), text
        if field in ("step_type", "template"):
            return f"{prefix}-runs", text if part.texts.get("runs") else "Choose what it runs."
        return (f"{prefix}-{field}" if field in ("name", *POLICIES) else prefix), text

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
    needed = [name for name, field in fields.items() if field.widget.attrs.get("data-needed")]
    first = next((texts[name] for name in [*needed, *fields] if texts.get(name)), "")
    return first.strip().partition("\n")[0][:80]


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "?", "!")) else f"{text[:1].upper()}{text[1:]}."
