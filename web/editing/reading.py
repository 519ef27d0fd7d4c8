"""Reads the forms of the schedule editor together: the schedule that they define, and all their errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import QueryDict

from operations.field_errors import FieldError, field_errors
from schedules.forms.settings import PREFIX
from schedules.forms.spec_items import EXCLUDE, RULES
from schedules.forms.steps import StepForm
from schedules.forms.tasks import POLICIES, TaskForm
from schedules.forms.times import MOST_FORMS, TimesForms
from schedules.models import Schedule, Step, TaskTemplate
from schedules.registry import step_types
from text.clean import clean_text
from text.words import sentence
from web.saving import anchor_of

from .data import DefinitionForm, count_of, formset_of, put_count

LONGEST_SUMMARY = 80


class Card:
    """A step or a task template, with its form."""

    def __init__(self, form: TaskForm, *, is_checked: bool = True) -> None:
        self.form, self.prefix, self._is_checked = form, form.prefix or "", is_checked
        self.key = self.prefix.rpartition("-")[2]
        self.is_folded = isinstance(form, StepForm) and form.is_folded
        if self.is_new and not self.is_folded:
            form.fields["name"].widget.attrs["autofocus"] = True

    @property
    def written(self) -> dict[str, Any]:
        return self.form.written if isinstance(self.form, StepForm) else {}

    @property
    def step(self) -> Step | None:
        """Return the step with the values of its template, or None if the step cannot be read."""
        try:
            return Step.read(self.written, self.form.templates)
        except ValidationError:
            return None

    @property
    def name(self) -> str:
        text = self.written.get("name", "") if self.is_folded else self.form["name"].value()
        return str(text or "").strip()

    @property
    def index(self) -> int:
        return int(self.form.cleaned_data.get("index") or 0)

    @property
    def is_new(self) -> bool:
        return bool(self.form.data.get(f"{self.prefix}-new"))

    @property
    def is_kept_open(self) -> bool:
        return bool(self.form.data.get(f"{self.prefix}-open"))

    @property
    def is_open(self) -> bool:
        """Return whether the fields are shown: the step is new, was opened, has no name, or has errors."""
        return not self.is_folded and bool(
            self.form.errors or self.is_new or self.is_kept_open or not self.name
        )

    @property
    def has_wrong_policy(self) -> bool:
        return self._is_checked and not set(POLICIES).isdisjoint(self.form.errors)

    @property
    def folded(self) -> str:
        """Return the step as JSON, without the index, which has its own form field."""
        step = {name: value for name, value in self.written.items() if name != "index"}
        return json.dumps(step, ensure_ascii=False)

    @property
    def template(self) -> TaskTemplate | None:
        return self.form.templates.get(str(self.written.get("template", "")))

    @property
    def step_type(self) -> str:
        return self.template.step_type if self.template else str(self.written.get("step_type", ""))

    @property
    def title(self) -> str:
        kind = step_types.get(self.step_type)
        if self.template:
            return self.template.name
        return kind.title if kind else self.step_type or str(self.written.get("template", ""))

    @property
    def summary(self) -> str:
        """Return the value of one setting as a short text, by which a user can recognize the step.

        Required settings are preferred; settings without a value are ignored.
        """
        kind, own = step_types.get(self.step_type), self.written.get("config")
        config = (self.template.config if self.template else {}) | (own if isinstance(own, dict) else {})
        typed = [field for field in kind.fields if field.kind not in ("bool", "choice")] if kind else []
        values = [config.get(field.name) for field in sorted(typed, key=lambda field: not field.required)]
        text = next((_line(value) for value in values if value), "")
        return clean_text(text).partition("\n")[0][:LONGEST_SUMMARY]

    def label_of(self, name: str) -> str:
        """Return the label of the field with this name, or “Step” if the form has no such field."""
        bound = self._bound(name)
        return str(bound.label) if bound else "Step"

    def anchor_of(self, name: str) -> str:
        """Return the id of the element to which the error summary links for the field with this name."""
        bound = self._bound(name)
        return anchor_of(bound) if bound else f"error-{name}"

    def setting(self, name: str) -> str:
        return self.form.add_prefix(f"{PREFIX}{name}")

    def _bound(self, name: str) -> forms.BoundField | None:
        inner = name.removeprefix(f"{self.prefix}-")
        return self.form[inner] if inner in self.form.fields else None


def _line(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value.strip() if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Reading:
    """The editor's forms, filled with the sent data.

    The keys of `errors` are names of fields, of forms and of sections of the page.
    """

    def __init__(
        self, data: QueryDict, *, schedule: Schedule | None, now: datetime, tells_secrets: bool
    ) -> None:
        self.data, self.schedule, self.now = data.copy(), schedule, now
        for prefix in (RULES, EXCLUDE):
            put_count(self.data, prefix, min(count_of(self.data, prefix), MOST_FORMS))
        # A copy, because the form changes its instance.
        copy = Schedule(pk=schedule.pk, status=schedule.status) if schedule else Schedule()
        self.form = DefinitionForm(self.data, instance=copy)
        self.form.is_valid()
        stored = schedule.spec if schedule else None
        self.times = TimesForms(self.data, self.form, stored=stored, now=now)
        self.formset = formset_of(self.data, schedule, tells_secrets=tells_secrets)
        self.steps, self.templates = self.formset.steps, self.formset.templates
        self.errors: dict[str, list[str]] = {}
        for name, text in self._found():
            self.complain(name, text)

    def complain(self, name: str, text: str) -> None:
        known, text = self.errors.setdefault(name, []), sentence(text)
        if text not in known:
            known.append(text)

    def refuse(self, error: ValidationError) -> None:
        """Add the validation errors of the model, each to the field that the error is about."""
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
    def is_right(self) -> bool:
        return not self.errors

    @property
    def definition(self) -> dict[str, Any]:
        """Return the definition without the steps. If the forms have errors, the definition is incomplete."""
        return self.form.definition | ({"spec": self.times.spec.as_json()} if self.times.spec else {})

    @cached_property
    def cards(self) -> list[list[Card]]:
        """Return the cards of the steps, by group, in the order of the plan."""
        groups: dict[int, list[Card]] = {}
        for form in self.formset.step_forms:
            card = Card(form)
            groups.setdefault(card.index, []).append(card)
        return [groups[index] for index in sorted(groups)]

    @property
    def _formsets(self) -> list[tuple[Any, list[Any]]]:
        """Return pairs of a formset and the list of its forms; leave out removed forms."""
        rules, exclusions = self.times.rules, self.times.exclusions
        return [
            (rules, rules.item_forms),
            (exclusions, exclusions.item_forms),
            (self.formset, self.formset.step_forms),
        ]

    def _found(self) -> Iterator[tuple[str, str]]:
        """Yield the errors of all forms, each with the name of its field, form or formset.

        Errors about the schedule as a whole are shown at the name, because the usual one is that the name is
        already in use.
        """
        yield from _errors_of(self.form, whole="name")
        for formset, kept in self._formsets:
            yield from ((formset.prefix, str(text)) for text in formset.non_form_errors())
            for form in kept:
                yield from _errors_of(form, whole=form.prefix)

    def _place(self, error: FieldError) -> None:
        """Add an error of the model about a step to the form of that step."""
        forms = self.formset.step_forms
        match error.path:
            case (int(place), *inner) if place < len(forms):
                name, message = forms[place].placed(error._replace(path=tuple(inner)))
                self.complain(forms[place].add_prefix(name) if name else forms[place].prefix, message)
            case _:
                self.complain("steps", error.message)


def _errors_of(form: forms.BaseForm, *, whole: str) -> Iterator[tuple[str, str]]:
    for name, texts in form.errors.items():
        place = whole if name == NON_FIELD_ERRORS else form.add_prefix(name)
        yield from ((place, str(text)) for text in texts)
