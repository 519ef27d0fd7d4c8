"""The form of a task template, as its page shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError

from operations.initiator import Initiator
from schedules.forms.tasks import TemplateForm
from schedules.models import Conflict, Refused, TaskTemplate
from schedules.permissions import May
from schedules.revisions import records_of
from schedules.vault import VaultError
from web.saving import Difference, Mistake, Overtaken, mistakes_of

from .shown import undefined_secrets


class TemplatePage:
    """The form of a task template. Errors are shown only after the form has been checked."""

    def __init__(
        self, data: Any, *, template: TaskTemplate | None, is_checked: bool, tells_secrets: bool = False
    ) -> None:
        self.template, self.is_checked = template, is_checked
        self.form = TemplateForm(data, instance=template)
        self.form.tells_secrets = tells_secrets
        if template:
            del self.form.fields["name"]
        self.conflict: Overtaken | None = None

    def errors_of(self, name: str) -> Sequence[str]:
        return [str(text) for text in self.errors.get(name, ())] if self.is_checked else []

    @property
    def errors(self) -> dict[str, Any]:
        return {"" if name == NON_FIELD_ERRORS else name: texts for name, texts in self.form.errors.items()}

    @property
    def mistakes(self) -> list[Mistake]:
        return mistakes_of(self.form) if self.is_checked else []

    @cached_property
    def missing_secrets(self) -> list[str]:
        return undefined_secrets([self.form.instance])

    def save(self, *, initiator: Initiator, now: datetime, may: May) -> TaskTemplate | None:
        """Save the template and return it, or return None if the form has errors or there is a conflict."""
        if not self.form.is_valid():
            return None
        by: dict[str, Any] = {"initiator": initiator, "now": now, "may": may}
        try:
            if self.template is None:
                name = self.form.instance.name
                return TaskTemplate.objects.define(name=name, **self.form.definition, **by)
            stored = TaskTemplate.objects.get(pk=self.template.pk)
            stored.edit(token=self.form.cleaned_data["version"], changes=self.form.definition, **by)
        except Conflict as conflict:
            self.conflict = self._overtaken(conflict)
        except (Refused, VaultError) as refused:
            self.form.add_error(None, str(refused))
        except ValidationError as error:
            self.form.add_error(None, error)
        else:
            return stored
        return None

    def _overtaken(self, conflict: Conflict) -> Overtaken:
        """Describe the conflict, and put the newest version number into the form.

        If the user then saves again, the form replaces the newest version.
        """
        stored = TaskTemplate.objects.get(pk=self.form.instance.pk)
        self.form.data = self.form.data.copy()
        self.form.data["version"] = str(conflict.token)
        mine = self.form.definition
        differences = [
            Difference(label_of(name), _shown(theirs), _shown(mine[name]))
            for name, theirs in stored.definition().items()
            if theirs != mine[name]
        ]
        return Overtaken(records_of(stored).order_by("-pk").first(), differences)


def label_of(name: str) -> str:
    if name in TemplateForm.base_fields and name != "config":
        return str(TemplateForm.base_fields[name].label)
    return "Settings" if name == "config" else "Step type"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value, indent=2, ensure_ascii=False)
    return "" if value is None else str(value)
