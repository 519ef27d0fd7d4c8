"""The form of a task template, and the fields that it shares with the form of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from operations.field_errors import FieldError
from operations.form_errors import VerbForm
from schedules import registry
from schedules.form_fields import JSONText, Seconds, Words
from schedules.models import Schedule, Step, TaskTemplate
from schedules.models.step import TaskFields
from text.words import sentence

from . import settings
from .sent import put, sent

if TYPE_CHECKING:
    AnyModelForm = forms.ModelForm[Any]
    StepInlineFormSet = forms.BaseInlineFormSet[Step, Schedule, forms.ModelForm[Step]]
else:
    AnyModelForm = forms.ModelForm
    StepInlineFormSet = forms.BaseInlineFormSet

TYPE, TEMPLATE = "type:", "template:"
MOST_OFFERED = 500
# The fields that keep what was typed when a template is chosen or replaced.
PLACE = ("runs", "index", "name", "run_if", "description")
# The fields that say how a step runs.
POLICIES = tuple(name for name in Step.FIELDS if name not in ("index", "name", "step_type", "config"))
DURATIONS = ("timeout_seconds", "retry_seconds", "retry_cap_seconds")
LABELS = {
    "run_if": "Run if",
    "continue_on_failure": "Continue when this step fails",
    "max_failed_percent": "Failed items allowed (%)",
    "timeout_seconds": "Timeout",
    "max_retries": "Retries",
    "retry_seconds": "First delay",
    "retry_factor": "Delay factor",
    "retry_cap_seconds": "Longest delay",
    "retry_jitter": "Retry jitter (%)",
    "on_crash": "If the worker dies",
}
HELP_TEXTS = {
    "timeout_seconds": "Such as 90s or 1h30m. If empty, no timeout applies.",
    "max_retries": "How many times a failed step is retried.",
    "retry_seconds": "Such as 10s.",
    "pool": "The pool in which the step is queued. Workers choose the pools that they serve.",
}
Templates = Mapping[str, TaskTemplate]


def hidden(**kwargs: Any) -> forms.CharField:
    return forms.CharField(required=False, strip=False, widget=forms.HiddenInput, **kwargs)


class TaskForm(VerbForm, AnyModelForm):
    """The base form for steps and task templates: what runs, and how.

    The form has the settings fields of the chosen step type. `drawn_for` is the choice for which the page was
    drawn. If the choice has changed since then, the form is drawn again with the defaults of the new choice.
    """

    use_required_attribute = False
    nothing_chosen = "Choose a step type."
    # Whether error messages may name secrets: only people who may write steps that use secrets see the names.
    tells_secrets = False
    runs = forms.CharField(label="Runs", required=False, widget=forms.Select)
    as_json = forms.BooleanField(label="Edit the settings as JSON", required=False)
    config = JSONText(label="Settings as JSON", required=False, initial=dict)
    retry_on = Words(
        label="Retry only after",
        initial=list,
        help_text="One text per line. The step is retried only if its error contains one of these texts. If "
        "empty, the step is retried after any error.",
    )
    resources = Words(
        label="Resources",
        initial=list,
        help_text="One resource per line, such as connected-system:7. A limit can say how many tasks may use "
        "a resource at the same time.",
    )
    drawn_for = hidden(initial="fields:")

    class Meta:
        labels = LABELS
        help_texts = HELP_TEXTS
        field_classes = dict.fromkeys(DURATIONS, Seconds)
        widgets: dict[str, Any] = {
            "retry_factor": forms.NumberInput(attrs={"class": "vIntegerField", "step": "any"}),
            **{name: forms.TextInput(attrs={"autocomplete": "off", "size": 12}) for name in DURATIONS},
        }

    def __init__(
        self,
        *args: Any,
        templates: Templates | None = None,
        offered: Sequence[tuple[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.templates = templates or {}
        if "runs" not in self.fields:
            return
        if self.is_bound and self._drawn_for != self["drawn_for"].value():
            self.data: Any = self.data.copy()
            self._draw_anew(str(self["drawn_for"].value() or ""))
        if not self.is_json:
            del self.fields["config"]
            self.fields |= self._setting_fields()
        self._offer(offered if offered is not None else [("Step types", offered_types())])
        if self.is_json:
            text = self.fields["config"].prepare_value(self["config"].value())
            self.fields["config"].widget.attrs["rows"] = min(max(text.count("\n") + 1, 4), 20)

    @property
    def chosen(self) -> str:
        return str(self["runs"].value() or "") if "runs" in self.fields else ""

    @property
    def template(self) -> TaskTemplate | None:
        return self.templates.get(self.chosen.removeprefix(TEMPLATE)) if self.follows else None

    @property
    def follows(self) -> bool:
        return self.chosen.startswith(TEMPLATE)

    @property
    def kind(self) -> registry.StepKind | None:
        """Return the step type whose settings are shown, or None if the step type or template is unknown."""
        return _kind_of(self.chosen, self.templates)

    @property
    def is_json(self) -> bool:
        return bool(self.chosen) and (bool(self["as_json"].value()) or self.kind is None)

    @property
    def settings(self) -> list[forms.BoundField]:
        return [self[name] for name in self.fields if name.startswith(settings.PREFIX)]

    @property
    def leftover(self) -> dict[str, str]:
        """Return the sent settings of a previous step type, kept in case that step type is chosen again."""
        start = self.add_prefix(settings.PREFIX)
        names = [name for name in self.data if name.startswith(start)]
        known = {bound.html_name for bound in self.settings}
        return {name: str(self.data[name]) for name in names if name not in known}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if "runs" in self.fields and not self.is_json:
            typed = {bound.name: cleaned.get(bound.name) for bound in self.settings}
            cleaned["config"] = _config_of(typed)
        return cleaned

    def placed(self, error: FieldError) -> tuple[str | None, str]:
        """Return the name of the field that shows an error of the model, and the message.

        The name is None if the error concerns the whole form.
        """
        message = sentence(error.message)
        match error.path:
            case ("config", setting, *_) if self.is_json or f"{settings.PREFIX}{setting}" not in self.fields:
                return "config" if self.is_json else None, f"{setting}: {message}"
            case ("config", setting, *_):
                return f"{settings.PREFIX}{setting}", message
            case ("step_type" | "template", *_) if "runs" in self.fields:
                return "runs", message if self.chosen else self.nothing_chosen
            case (str(field), *_) if field in self.fields:
                return field, message
        return None, message

    @property
    def _drawn_for(self) -> str:
        return _drawn_for(self.chosen, as_json=bool(self["as_json"].value()))

    def _draw_anew(self, drawn_for: str) -> None:
        """Replace the sent data after the step type, the template or the JSON mode has changed.

        `drawn_for` names the mode and the choice for which the sent fields were drawn.
        """
        way, _, before = drawn_for.partition(":")
        if before == self.chosen:
            self._turn(was_json=way == "json")
        elif TEMPLATE in (before + self.chosen):
            # When a template is chosen or replaced, the new values replace what was typed.
            self._put({name: value for name, value in self._fresh().items() if name not in PLACE})
        else:
            self._put({"as_json": False, "config": ""})
            defaults = {name: field.initial for name, field in self._setting_fields().items()}
            typed = {name for name in defaults if self.add_prefix(name) in self.data}
            self._put({name: value for name, value in defaults.items() if name not in typed})
        self._put({"drawn_for": self._drawn_for})

    def _turn(self, *, was_json: bool) -> None:
        """Convert the sent settings to JSON or, if `was_json`, to fields.

        Settings that fields cannot show stay JSON.
        """
        if self.kind is None:
            return
        if not was_json:
            typed = {
                name: field.to_python(field.widget.value_from_datadict(self.data, {}, self.add_prefix(name)))
                for name, field in self._setting_fields().items()
            }
            self._put({"config": self._own_config(_config_of(typed))})
            return
        try:
            config = self.fields["config"].clean(self["config"].value())
        except ValidationError:
            config = None
        if isinstance(config, dict):
            config = (self.template.config if self.template else {}) | config
        if settings.can_show(self.kind, config):
            self._put(_settings_of(self.kind, config) | {"config": ""})
        else:
            self._put({"as_json": True})

    def _fresh(self) -> dict[str, Any]:
        """Return the initial field values of a form for the current choice."""
        if self.template:
            return shown(Step.read({"template": self.template.name}, self.templates))
        return shown(Step(step_type=self.chosen.removeprefix(TYPE)), is_new=True)

    def _own_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return config

    def _setting_fields(self) -> dict[str, forms.Field]:
        return settings.fields_of(self.kind) if self.kind else {}

    def _put(self, values: Mapping[str, Any]) -> None:
        fields = self.fields | self._setting_fields()
        known = {name: sent(fields[name], value) for name, value in values.items() if name in fields}
        put(self.data, {self.add_prefix(name): each for name, each in known.items()})

    def _offer(self, offered: Sequence[tuple[str, Any]]) -> None:
        """Offer the choices, and the current choice even if it no longer exists: the model reports this."""
        groups = [("", "choose…"), *offered]
        if self.chosen and self.chosen not in {value for _, group in offered for value, _ in group}:
            state = "not active" if self.follows else "not installed"
            groups.append((self.chosen, f"{self.chosen.partition(':')[2]} ({state})"))
        self.fields["runs"].widget.choices = groups


class TemplateForm(TaskForm):
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    class Meta(TaskForm.Meta):
        model = TaskTemplate
        fields = ("name", *(name for name in TaskTemplate.EDITABLE if name not in ("step_type", "config")))
        widgets = TaskForm.Meta.widgets | {
            "description": forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"})
        }
        help_texts = TaskForm.Meta.help_texts | {
            "name": "Steps refer to the template by this name, which cannot be changed later."
        }

    def __init__(self, *args: Any, instance: TaskTemplate | None = None, **kwargs: Any) -> None:
        stored = shown(instance) | {"version": instance.token} if instance and instance.pk else {}
        kwargs["initial"] = stored | (kwargs.get("initial") or {})
        super().__init__(*args, instance=instance, **kwargs)

    def placed(self, error: FieldError) -> tuple[str | None, str]:
        """Return the field and the message of an error; errors of the whole template are shown at `name`."""
        return super().placed(error if error.path else error._replace(path=("name",)))

    @property
    def definition(self) -> dict[str, Any]:
        """Return the entered values of the fields in `TaskTemplate.EDITABLE`."""
        return {name: getattr(self.instance, name) for name in TaskTemplate.EDITABLE}

    def _post_clean(self) -> None:
        """Copy the entered values to the instance, and let the model check the whole template."""
        for name in ("name", *TaskTemplate.EDITABLE):
            if name in self.cleaned_data:
                setattr(self.instance, name, self.cleaned_data[name])
        if "runs" in self.fields:
            self.instance.step_type = self.chosen.removeprefix(TYPE)
        try:
            self.instance.check_definition(tells_secrets=self.tells_secrets)
        except ValidationError as error:
            self.add_error(None, error)


def shown(task: TaskFields, *, is_new: bool = False) -> dict[str, Any]:
    """Return the field values that show a step or template; if `is_new`, with the step type's defaults."""
    overrides = task.overrides if isinstance(task, Step) else {}
    template = overrides.get("template", "")
    runs = f"{TEMPLATE}{template}" if template else f"{TYPE}{task.step_type}" if task.step_type else ""
    names = ("index", "name", "description", *POLICIES)
    values = {name: getattr(task, name) for name in names if hasattr(task, name)}
    values |= {"runs": runs, "own": " ".join(_pinned(overrides)), "as_json": False, "config": ""}
    values["drawn_for"] = _drawn_for(runs, as_json=False)
    kind = registry.step_types.get(task.step_type)
    if kind and is_new:
        return values | {name: field.initial for name, field in settings.fields_of(kind).items()}
    if kind and settings.can_show(kind, task.config):
        return values | _settings_of(kind, task.config)
    own = overrides.get("config", {}) if template else task.config
    return values | {"as_json": bool(runs), "config": own, "drawn_for": _drawn_for(runs, as_json=bool(runs))}


def shown_alone(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field values for a step whose template cannot be used: only what the step overrides."""
    runs = f"{TEMPLATE}{data.get('template')}"
    own = {name: value for name, value in data.items() if name not in ("template", "config")}
    return shown(Step(**own)) | {
        "runs": runs,
        "own": " ".join(_pinned(data)),
        "as_json": True,
        "config": data.get("config", ""),
        "drawn_for": _drawn_for(runs, as_json=True),
    }


def _drawn_for(runs: str, *, as_json: bool) -> str:
    return f"{'json' if as_json else 'fields'}:{runs}"


def offered_types() -> list[tuple[str, str]]:
    return [(f"{TYPE}{name}", title) for name, title in registry.choices()]


def _settings_of(kind: registry.StepKind, config: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{settings.PREFIX}{each.name}": config.get(each.name) for each in kind.fields}


def _config_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict from setting name to value.

    Empty values are left out, so that the step type uses its defaults.
    """
    return {name.removeprefix(settings.PREFIX): value for name, value in values.items() if value is not None}


def _pinned(overrides: Mapping[str, Any]) -> list[str]:
    config = overrides.get("config", {})
    inner = [f"config.{name}" for name in config] if isinstance(config, dict) else []
    return [*(name for name in overrides if name not in ("template", "config")), *inner]


def _kind_of(chosen: str, templates: Templates) -> registry.StepKind | None:
    if not chosen.startswith(TEMPLATE):
        return registry.step_types.get(chosen.removeprefix(TYPE))
    template = templates.get(chosen.removeprefix(TEMPLATE))
    return registry.step_types.get(template.step_type) if template else None
