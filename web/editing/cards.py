"""Steps as the page shows them."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from schedules.forms.settings import PREFIX
from schedules.forms.steps import POLICIES, StepForm, TaskForm
from schedules.models import Step, TaskTemplate
from schedules.registry import step_types
from text.clean import clean_text
from web.mistakes import anchor_of

LONGEST_SUMMARY = 80


class Card:
    """One step or template with its form."""

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
        """The step as it would run; None while its template cannot be applied."""
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
        """Tell whether the step has to be filled in or corrected."""
        return not self.is_folded and bool(
            self.form.errors or self.is_new or self.is_kept_open or not self.name
        )

    @property
    def has_wrong_policy(self) -> bool:
        return self._is_checked and not set(POLICIES).isdisjoint(self.form.errors)

    @property
    def folded(self) -> str:
        """The step as JSON, without the index, which is a field of its own."""
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
        """What tells the step from others: the first of its settings, those that are needed before others."""
        kind, own = step_types.get(self.step_type), self.written.get("config")
        config = (self.template.config if self.template else {}) | (own if isinstance(own, dict) else {})
        typed = [field for field in kind.fields if field.kind not in ("bool", "choice")] if kind else []
        values = [config.get(field.name) for field in sorted(typed, key=lambda field: not field.required)]
        text = next((_line(value) for value in values if value), "")
        return clean_text(text).partition("\n")[0][:LONGEST_SUMMARY]

    def label_of(self, name: str) -> str:
        """Return what the page calls this field of the step."""
        bound = self._bound(name)
        return str(bound.label) if bound else "Step"

    def anchor_of(self, name: str) -> str:
        """Return where the page shows what is wrong with it."""
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
