"""A template while somebody edits it: a draft with one step and no times, made of the same parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import cached_property
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from operations.field_errors import field_errors
from operations.initiator import Initiator
from schedules.models import Conflict, Refused, TaskTemplate
from schedules.permissions import May
from schedules.registry import choices as type_choices
from schedules.revisions import records_of
from schedules.vault import VaultError
from web.mistakes import Mistake
from web.saving import Difference, Overtaken

from .cards import Card
from .complaints import Complaints, placed
from .draft import Draft, Part, numbered
from .fields import line, lines
from .places import undefined_secrets
from .saving import number_of
from .steps import FROM_TYPE, LABELS, chosen, config_texts, fresh, policy_texts, written

NO_VERSION = "This form does not say which version it changes: load the page again."


class AboutForm(forms.Form):
    name = line("Name", help="Steps refer to it by this name, which stays.", code=False)
    description = lines("Description", rows=2, code=False)


def new_draft() -> Draft:
    return Draft(steps=numbered([fresh("", {})]))


def draft_of(template: TaskTemplate) -> Draft:
    runs = f"{FROM_TYPE}{template.step_type}"
    frame = {"runs": runs, "shown": runs}
    texts = frame | policy_texts(template.as_step())
    texts |= config_texts(template.step_type, template.config, template.config)
    own = {"description": template.description, "token": str(template.token)}
    return Draft(own, steps=numbered([texts]))


class TemplateReading:
    """What it defines, and what is wrong with it, by field. `is_checked`: that is said."""

    def __init__(self, draft: Draft, *, template: TaskTemplate | None, is_checked: bool) -> None:
        self.template, self.is_checked, self.own = template, is_checked, draft.own
        self._complaints = Complaints()
        self.part = next(iter(draft.steps), new_draft().steps[0])
        self.part = Part(self.part.key, chosen(self.part.texts, {}))
        self.form = AboutForm(draft.own, use_required_attribute=False)
        self.made = self._read()
        self.conflict: Overtaken | None = None

    @property
    def draft(self) -> Draft:
        return Draft(self.own, steps=[self.part])

    @property
    def is_right(self) -> bool:
        return not self._complaints.found

    def errors_of(self, name: str) -> Sequence[str]:
        return self._complaints.found.get(name, []) if self.is_checked else []

    @cached_property
    def mistakes(self) -> list[Mistake]:
        """All that is wrong but for what is said about the whole, in the order of the page."""
        found = {name: texts for name, texts in self._complaints.found.items() if name and self.is_checked}
        own = [name for name in found if name in self.form.fields]
        told = [Mistake(str(self.form[name].label), f"id_{name}", found.pop(name)) for name in own]
        return told + [
            Mistake(self.card.label_of(name), self.card.anchor_of(name), found[name]) for name in found
        ]

    @cached_property
    def missing_secrets(self) -> list[str]:
        return undefined_secrets([self.made])

    @cached_property
    def card(self) -> Card:
        types = [(f"{FROM_TYPE}{name}", title) for name, title in type_choices()]
        wrong = list(self._complaints.found) if self.is_checked else []
        return Card(self.part, {}, offered=lambda: [("Step types", types)], wrong=wrong)

    def save(self, *, initiator: Initiator, now: datetime, may: May) -> TaskTemplate | None:
        """None if the model refused: the reading says why."""
        by = {"initiator": initiator, "now": now, "may": may}
        try:
            return self._define(by) if self.template is None else self._edit(self.template, by)
        except Conflict as conflict:
            self._overtaken(conflict)
        except (Refused, VaultError) as refused:
            self._complaints.add("", str(refused))
        except ValidationError as error:
            self._complain(error)
        return None

    def _define(self, by: Mapping[str, Any]) -> TaskTemplate:
        return TaskTemplate.objects.define(name=self.made.name, **self.made.definition(), **by)

    def _edit(self, template: TaskTemplate, by: Mapping[str, Any]) -> TaskTemplate:
        template.edit(token=number_of(self.own["token"]), changes=self.made.definition(), **by)
        return template

    def _read(self) -> TaskTemplate:
        data, wrong = written(self.part.texts, {})
        wrong = {name: text for name, text in wrong.items() if name in TaskTemplate.STEP}
        for name, text in wrong.items():
            self._complaints.add(f"step-{self.part.key}-{name}", text)
        made = copy(self.template) if self.template else TaskTemplate(name=self.own.get("name", ""))
        made.description = self.own.get("description", "")
        for name in TaskTemplate.STEP:
            if name in data and name not in wrong:
                setattr(made, name, data[name])
        if self.template and not number_of(self.own.get("token", "")):
            self._complaints.add("", NO_VERSION)
        try:
            made.check_definition()
        except ValidationError as error:
            self._complain(error, but=wrong)
        return made

    def _complain(self, error: ValidationError, but: Mapping[str, str] | None = None) -> None:
        """But for what has its complaint already. The one rule that is about the whole is about its name."""
        for path, message, _ in field_errors(error):
            if path and path[0] in (but or {}):
                continue
            if path in ((), ("name",)):
                self._complaints.add("name" if self.template is None else "", message)
            elif path == ("description",):
                self._complaints.add("description", message)
            else:
                self._complaints.add(*placed(self.part, {}, path, message))

    def _overtaken(self, conflict: Conflict) -> None:
        """What was typed stays, and counts for the newest version: saving it again is a decision."""
        assert self.template is not None
        stored = TaskTemplate.objects.get(pk=self.template.pk)
        self.own = self.own | {"token": str(conflict.token)}
        differences = [
            Difference(label_of(name), _shown(theirs), _shown(getattr(self.made, name)))
            for name, theirs in stored.definition().items()
            if theirs != getattr(self.made, name)
        ]
        self.conflict = Overtaken(records_of(stored).order_by("-pk").first(), differences)


def label_of(name: str) -> str:
    if name == "config":
        return "Settings"
    field: Any = TaskTemplate._meta.get_field(name)
    return LABELS.get(name) or str(field.verbose_name).capitalize()


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value, indent=2, ensure_ascii=False)
    return "" if value is None else str(value)
