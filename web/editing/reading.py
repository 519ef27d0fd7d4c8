"""The forms of the editor, read as a whole: what they define, and what is wrong with them, by field."""

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
    """The forms with their data. `errors` are by the name of a field, a form of a formset, or a section."""

    def __init__(
        self, data: QueryDict, *, schedule: Schedule | None, now: datetime, tells_secrets: bool
    ) -> None:
        self.data, self.schedule, self.now = data.copy(), schedule, now
        for prefix in (RULES, EXCLUDE):
            put_count(self.data, prefix, min(count_of(self.data, prefix), MOST_FORMS))
        # The form changes its instance.
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
    def is_right(self) -> bool:
        return not self.errors

    @property
    def definition(self) -> dict[str, Any]:
        """Without the steps; whole only if nothing is wrong with it."""
        return self.form.definition | ({"spec": self.times.spec.as_json()} if self.times.spec else {})

    @cached_property
    def cards(self) -> list[list[Card]]:
        """Groups of steps."""
        groups: dict[int, list[Card]] = {}
        for form in self.formset.step_forms:
            card = Card(form)
            groups.setdefault(card.index, []).append(card)
        return [groups[index] for index in sorted(groups)]

    @property
    def _formsets(self) -> list[tuple[Any, list[Any]]]:
        """The formsets, each with the forms that were not removed."""
        rules, exclusions = self.times.rules, self.times.exclusions
        return [
            (rules, rules.item_forms),
            (exclusions, exclusions.item_forms),
            (self.formset, self.formset.step_forms),
        ]

    def _found(self) -> Iterator[tuple[str, str]]:
        """Yield the errors of all forms; the only rule about the schedule as a whole is its unique name."""
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
