"""The forms of the editor, read together: the schedule that they define, and their errors by field."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cached_property
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import QueryDict

from operations.field_errors import FieldError, field_errors
from schedules.forms.spec_items import EXCLUDE, RULES
from schedules.forms.times import MOST_FORMS, TimesForms
from schedules.models import Schedule
from text.words import sentence

from .cards import Card
from .data import count_of, put_count
from .definition import DefinitionForm
from .steps import formset_of


class Reading:
    """The forms with their data. The keys of `errors` name a field, a form of a formset, or a section."""

    def __init__(self, data: QueryDict, *, schedule: Schedule | None, now: datetime) -> None:
        self.data, self.schedule, self.now = data.copy(), schedule, now
        for prefix in (RULES, EXCLUDE):
            put_count(self.data, prefix, min(count_of(self.data, prefix), MOST_FORMS))
        # A copy, because the form changes its instance.
        copy = Schedule(pk=schedule.pk, status=schedule.status) if schedule else Schedule()
        self.form = DefinitionForm(self.data, instance=copy)
        self.form.is_valid()
        stored = schedule.spec if schedule else None
        self.times = TimesForms(self.data, self.form, stored=stored, now=now)
        self.formset = formset_of(self.data, schedule)
        self.steps, self.templates = self.formset.steps, self.formset.templates
        self.errors: dict[str, list[str]] = {}
        for name, text in self._found():
            self.complain(name, text)

    def complain(self, name: str, text: str) -> None:
        known, text = self.errors.setdefault(name, []), sentence(text)
        if text not in known:
            known.append(text)

    def refuse(self, error: ValidationError) -> None:
        """Add the validation errors of the model to the fields that they are about."""
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
        """Return the definition without the steps. It is complete only if there are no errors."""
        return self.form.definition | ({"spec": self.times.spec.as_json()} if self.times.spec else {})

    @cached_property
    def cards(self) -> list[list[Card]]:
        """Return the groups of steps, in their order."""
        groups: dict[int, list[Card]] = {}
        for form in self.formset.step_forms:
            card = Card(form)
            groups.setdefault(card.index, []).append(card)
        return [groups[index] for index in sorted(groups)]

    @property
    def _formsets(self) -> list[tuple[Any, list[Any]]]:
        """Return the formsets, each with its forms except for removed ones."""
        rules, exclusions = self.times.rules, self.times.exclusions
        return [
            (rules, rules.item_forms),
            (exclusions, exclusions.item_forms),
            (self.formset, self.formset.step_forms),
        ]

    def _found(self) -> Iterator[tuple[str, str]]:
        """Yield the errors of all forms. The schedule as a whole has one rule: its name is unique."""
        yield from _errors_of(self.form, whole="name")
        for formset, kept in self._formsets:
            yield from ((formset.prefix, str(text)) for text in formset.non_form_errors())
            for form in kept:
                yield from _errors_of(form, whole=form.prefix)

    def _place(self, error: FieldError) -> None:
        """Attach the model's error about a step to that step's form."""
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
