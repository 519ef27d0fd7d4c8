"""Steps as the page shows them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from django import forms

from schedules.models import TaskTemplate
from web.mistakes import anchor_of

from .draft import Part, Texts, packed
from .fields import choice, line, lines
from .settings import PREFIX, settings_form
from .steps import FROM_TEMPLATE, POLICIES, Templates, is_json, kind_of, policy_form

TYPED = (forms.TextInput, forms.Textarea)
LONGEST_SUMMARY = 80


class HeadForm(forms.Form):
    name = line("Name", help="What tells it from the others of this plan.", code=False)
    runs = choice("Runs", [])
    config = lines("Settings as JSON", rows=6)


class Card:
    """One step; its forms are made only where they are shown. `wrong` names those of its fields that are."""

    def __init__(
        self,
        part: Part,
        templates: Templates,
        *,
        offered: Callable[[], Sequence[tuple[str, Any]]],
        wrong: Collection[str],
    ) -> None:
        self.key, self.texts, self.prefix = part.key, part.texts, f"step-{part.key}"
        self._wrong = {name.removeprefix(self.prefix).removeprefix("-") for name in wrong}
        self._templates, self._offered = templates, offered

    @property
    def is_open(self) -> bool:
        """One that has to be filled in, or put right."""
        is_wanted = self.texts.get("new") or self.texts.get("open") or not self.texts.get("name")
        return bool(self._wrong or is_wanted)

    @property
    def has_wrong_policy(self) -> bool:
        """What is folded away has to be put right."""
        return not self._wrong.isdisjoint(POLICIES)

    @property
    def is_json(self) -> bool:
        return is_json(self.texts, self._templates)

    @property
    def packed(self) -> str:
        return packed(self.texts)

    @property
    def template(self) -> TaskTemplate | None:
        return self._templates.get(self.texts.get("runs", "").removeprefix(FROM_TEMPLATE))

    @property
    def title(self) -> str:
        kind = kind_of(self.texts, self._templates)
        if self.template:
            return self.template.name
        return kind.title if kind else self.texts.get("runs", "").partition(":")[2]

    @property
    def summary(self) -> str:
        """What tells it from others: the first of its settings that has to be there."""
        kind = kind_of(self.texts, self._templates)
        typed = [field for field in kind.fields if field.kind not in ("bool", "choice")] if kind else []
        ranked = sorted(typed, key=lambda field: not field.required)
        texts = [self.texts.get(f"{PREFIX}{field.name}", "").strip() for field in ranked]
        return next(filter(None, texts), "").partition("\n")[0][:LONGEST_SUMMARY]

    @cached_property
    def settings(self) -> forms.Form | None:
        kind = kind_of(self.texts, self._templates)
        return settings_form(kind, self.prefix, self.texts) if kind and not self.is_json else None

    @cached_property
    def policies(self) -> forms.Form:
        return policy_form(self.prefix, self.texts)

    def label_of(self, name: str) -> str:
        """What the page calls this field of it; the step as a whole has its name."""
        bound = self._bound(name)
        return str(bound.label) if bound else "Step"

    def anchor_of(self, name: str) -> str:
        """Where the page shows what is wrong with it."""
        bound = self._bound(name)
        return anchor_of(bound) if bound else f"error-{name}"

    def _bound(self, name: str) -> forms.BoundField | None:
        inner = name.removeprefix(f"{self.prefix}-")
        drawn = [self.head, self.policies, *([self.settings] if self.settings else [])]
        return next((form[inner] for form in drawn if inner in form.fields), None)

    @property
    def leftover(self) -> Texts:
        """Settings of what it ran before, which stay in case somebody goes back."""
        shown: Mapping[str, Any] = self.settings.fields if self.settings else {}
        return {
            name: text for name, text in self.texts.items() if name.startswith(PREFIX) and name not in shown
        }

    @cached_property
    def head(self) -> forms.Form:
        runs, offered = self.texts.get("runs", ""), self._offered()
        known = {value for _, group in offered for value, _ in group}
        missing = [] if not runs or runs in known else [(runs, f"{runs.partition(':')[2]} (not there)")]
        data = {f"{self.prefix}-{name}": text for name, text in self.texts.items()}
        form = HeadForm(data, prefix=self.prefix, use_required_attribute=False)
        widget = form.fields["runs"].widget
        assert isinstance(widget, forms.Select)
        widget.choices = [("", "choose…"), *offered, *missing]
        if self.texts.get("new"):
            form.fields["name"].widget.attrs["autofocus"] = True
        return form
