"""The form of a step and the formset of a schedule's steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db.models.functions import Lower
from django.utils.functional import cached_property

from files import strict_json
from operations.field_errors import FieldError
from schedules.form_fields import JSONText
from schedules.models import Schedule, Step, TaskTemplate
from schedules.models.step import check_steps, unreadable
from schedules.models.template import same_json

from .sent import Sent, data_of
from .tasks import MOST_OFFERED, POLICIES, TEMPLATE, TYPE, TaskForm, hidden, offered_types, shown, shown_alone

if TYPE_CHECKING:
    StepInlineFormSet = forms.BaseInlineFormSet[Step, Schedule, forms.ModelForm[Step]]
else:
    StepInlineFormSet = forms.BaseInlineFormSet


class StepForm(TaskForm):
    """The form of a step.

    `own` lists the fields that the step sets itself, even if its template has the same values. A step of a
    long plan can be folded: `folded` then holds the whole step as JSON and replaces the other fields.
    """

    # Whether the page can show folded steps. Otherwise all fields are drawn.
    can_be_folded: ClassVar[bool] = False
    nothing_chosen = "Choose a step type or a task template."
    own = hidden()
    folded = JSONText(required=False, widget=forms.HiddenInput)

    class Meta(TaskForm.Meta):
        model = Step
        fields = ("index", "name", *POLICIES)

    def __init__(self, data: Any = None, *args: Any, **kwargs: Any) -> None:
        folded = data.get(f"{kwargs.get('prefix')}-folded") if data and self.can_be_folded else ""
        self.is_folded = bool(folded)
        drawn = ("index", "folded") if self.is_folded else self.base_fields.keys() - {"folded"}
        # Keep only these fields: Django copies all base fields for each form, which is slow for hundreds of
        # steps.
        self.base_fields = {  # type: ignore[misc]
            name: field for name, field in self.base_fields.items() if name in drawn
        }
        super().__init__(data, *args, **kwargs)

    @property
    def written(self) -> dict[str, Any]:
        """Return the step as data for `Step.read`, without the fields that have errors."""
        cleaned: dict[str, Any] = self.cleaned_data
        place = {name: value for name, value in cleaned.items() if name in ("index", "name")}
        if self.is_folded:
            step = cleaned.get("folded")
            return {**step, **place} if isinstance(step, dict) else place
        policies = {name: cleaned[name] for name in POLICIES if name in cleaned}
        config = cleaned.get("config", {})
        if not self.follows:
            return {**place, "step_type": self.chosen.removeprefix(TYPE), "config": config, **policies}
        return {**place, "template": self.chosen.removeprefix(TEMPLATE), **self._differing(policies, config)}

    def unfolded(self) -> Sent:
        """Return the data that a browser would send for this step if all its fields were shown."""
        data = self.written
        try:
            initial = {} if unreadable(data) else shown(Step.read(data, self.templates))
        except ValidationError:
            initial = shown_alone(data)
        return data_of(StepForm(prefix=self.prefix, initial=initial, templates=self.templates))

    def _post_clean(self) -> None:
        """Do nothing: the formset has the model check all steps together."""

    def validate_unique(self) -> None:
        """Do nothing: these steps replace the ones in the database."""

    def _differing(self, policies: Mapping[str, Any], config: Any) -> dict[str, Any]:
        """Return the values with which the step overrides its template."""
        usual = (self.template.merged({}) if self.template else {}) | {"run_if": Step.RunIf.SUCCESS.value}
        own = {
            name: value
            for name, value in policies.items()
            if name in self._pinned or (name in usual and not same_json(value, usual[name]))
        }
        if not self.is_json:
            config = self._own_config(config)
        return own | ({"config": config} if config else {})

    def _own_config(self, config: dict[str, Any]) -> dict[str, Any]:
        if self.template is None:
            return config
        stored = self.template.config
        names = [setting.name for setting in self.kind.fields] if self.kind else list(config)
        return {
            name: config.get(name)
            for name in names
            if f"config.{name}" in self._pinned
            or not same_json(config.get(name) or None, stored.get(name) or None)
        }

    @property
    def _pinned(self) -> set[str]:
        return set(str(self["own"].value() or "").split())


class StepFormSet(StepInlineFormSet):
    """The forms of a schedule's steps. Saving replaces all steps, so no form is bound to a stored row."""

    # The errors with which the model refused to save the steps.
    refused: Sequence[FieldError] = ()
    # Whether error messages may name secrets: only people who may write steps that use secrets see the names.
    tells_secrets = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        schedule: Schedule = kwargs["instance"]
        if schedule.pk and not args and kwargs.get("data") is None:
            kwargs["initial"] = [shown(step) for step in schedule.steps.all()]
        kwargs["queryset"] = Step.objects.none()
        super().__init__(*args, **kwargs)
        self.extra = len(kwargs.get("initial", ())) or 1

    @cached_property
    def templates(self) -> dict[str, TaskTemplate]:
        """Return a dict from name to template with the templates that the steps use."""
        named = [{"template": name} for name in self._named_templates()]
        return TaskTemplate.objects.needed_by(named, schedule=self.instance)

    @cached_property
    def offered(self) -> list[tuple[str, Any]]:
        names = TaskTemplate.objects.active().order_by(Lower("name")).values_list("name", flat=True)
        templates = [(f"{TEMPLATE}{name}", name) for name in names[:MOST_OFFERED]]
        return [("Step types", offered_types()), *([("Templates", templates)] if templates else [])]

    def get_form_kwargs(self, index: int | None) -> dict[str, Any]:
        return {**super().get_form_kwargs(index), "templates": self.templates, "offered": self.offered}

    @property
    def step_forms(self) -> list[StepForm]:
        """Return the forms in the order in which the steps run, without empty and deleted ones."""
        steps = [form for form in self.forms if isinstance(form, StepForm) and self._is_step(form)]
        return sorted(steps, key=lambda form: form.cleaned_data.get("index", 0))

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [form.written for form in self.step_forms]

    def clean(self) -> None:
        """Check all steps; show errors of one step beside its fields, and other errors above the steps."""
        if not self.management_form.is_valid():
            return
        forms, whole = self.step_forms, []
        known = [set(form.errors) for form in forms]
        found = check_steps(self.steps, self.templates, tells_secrets=self.tells_secrets)
        for error in (*found, *self.refused):
            match error.path:
                case (int(place), *inner) if place < len(forms):
                    name, message = forms[place].placed(error._replace(path=tuple(inner)))
                    if name is None or name not in known[place]:
                        forms[place].add_error(name, ValidationError(message, code=error.code))
                case _:
                    whole.append(ValidationError(error.message, code=error.code))
        if whole:
            raise ValidationError(whole)

    def _is_step(self, form: StepForm) -> bool:
        is_left_empty = form.empty_permitted and not form.has_changed()
        return not is_left_empty and not form.cleaned_data.get("DELETE")

    def _named_templates(self) -> list[str]:
        if not self.is_bound:
            values = [str(each.get("runs", "")) for each in self.initial_extra or self.initial or ()]
        else:
            prefixes = [self.add_prefix(number) for number in range(self.total_form_count())]
            values = [self.data.get(f"{prefix}-runs", "") for prefix in prefixes]
            folded = [self.data.get(f"{prefix}-folded", "") for prefix in prefixes]
            values += [f"{TEMPLATE}{name}" for name in map(_template_in, folded) if name]
        return [value.removeprefix(TEMPLATE) for value in values if value.startswith(TEMPLATE)]


def _template_in(folded: str) -> str:
    """Return the name of the template that a folded step uses, or an empty string."""
    if '"template"' not in folded:
        return ""
    try:
        step = strict_json.loads(folded)
    except ValueError:
        return ""
    name = step.get("template") if isinstance(step, dict) else ""
    return name if isinstance(name, str) else ""
