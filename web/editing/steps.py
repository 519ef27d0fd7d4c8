"""Steps as texts of the form, and as the model has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from functools import lru_cache
from typing import Any

from django import forms

from files import strict_json
from schedules.form_fields import Seconds, Words
from schedules.models import Step, TaskTemplate
from schedules.models.template import same_json
from schedules.registry import StepKind, step_types

from . import settings
from .draft import Texts, as_text, index_of

POLICIES = tuple(name for name in Step.FIELDS if name not in ("index", "name", "step_type", "config"))
DURATIONS = ("timeout_seconds", "retry_seconds", "retry_cap_seconds")
LABELS = {
    "run_if": "Runs if",
    "continue_on_failure": "Its failure does not count: the steps after it run all the same",
    "max_failed_percent": "Failed items allowed (%)",
    "timeout_seconds": "Timeout",
    "max_retries": "Retries",
    "retry_seconds": "First delay",
    "retry_factor": "Factor",
    "retry_cap_seconds": "Longest delay",
    "retry_jitter": "Jitter (%)",
    "retry_on": "Retry only after",
    "on_crash": "If its worker dies",
}
HELP = {
    "timeout_seconds": "Such as 90s or 1h30m. Empty: no limit.",
    "max_retries": "How often it is tried again after it failed.",
    "retry_seconds": "Such as 10s.",
    "retry_on": "One per line. Only errors that contain one of these texts. Empty: any.",
    "pool": "Where it is queued; workers serve pools.",
    "resources": "One per line, such as connected-system:7: limits say how many may use each at once.",
}
LONG = ("retry_on", "resources")
FROM_TYPE, FROM_TEMPLATE = "type:", "template:"
Templates = Mapping[str, TaskTemplate]


# How a step runs.
PolicyForm: type[forms.Form] = type(
    "PolicyForm",
    (forms.Form,),
    forms.fields_for_model(
        Step,
        [name for name in POLICIES if name not in LONG],
        labels=LABELS,
        help_texts=HELP,
        field_classes=dict.fromkeys(DURATIONS, Seconds),
        widgets=dict.fromkeys(DURATIONS, forms.TextInput(attrs={"autocomplete": "off"})),
    )
    | {name: Words(label=LABELS.get(name), help_text=HELP[name]) for name in LONG},
)


def shown(step: Step) -> Texts:
    """A stored step; what its template says is shown as what it is."""
    template = step.overrides.get("template", "") if step.template_id else ""
    runs = f"{FROM_TEMPLATE}{template}" if template else f"{FROM_TYPE}{step.step_type}"
    own = " ".join(_pinned(step.overrides)) if template else ""
    frame = {"index": str(step.index), "name": step.name, "runs": runs, "shown": runs, "own": own}
    config = step.overrides.get("config", {}) if template else step.config
    return frame | policy_texts(step.as_json()) | config_texts(step.step_type, step.config, config)


def fresh(runs: str, templates: Templates) -> Texts:
    """The fields of a step that has just been told what it runs."""
    name = runs.removeprefix(FROM_TEMPLATE)
    if runs.startswith(FROM_TEMPLATE) and name in templates:
        made = Step.read({"template": name}, templates)
        policies, config = policy_texts(made.as_json()), config_texts(made.step_type, made.config, {})
    else:
        kind = step_types.get(runs.removeprefix(FROM_TYPE))
        policies, config = policy_texts(Step().as_json()), settings.defaults_of(kind) if kind else {}
    return {"runs": runs, "shown": runs, "own": ""} | policies | config


def chosen(texts: Texts, templates: Templates) -> Texts:
    """With the settings of what it runs now. Those of what it ran before stay, in case somebody goes back."""
    runs = texts.get("runs", "")
    if runs == texts.get("shown", ""):
        return texts
    typed = {name: text for name, text in texts.items() if name.startswith(settings.PREFIX)}
    place = {name: texts[name] for name in ("index", "name", "run_if") if name in texts}
    if FROM_TEMPLATE in (runs + texts.get("shown", "")):
        return typed | fresh(runs, templates) | place
    policies = {name: texts[name] for name in POLICIES if name in texts}
    return fresh(runs, templates) | policies | typed | place


def written(texts: Texts, templates: Templates) -> tuple[dict[str, Any], dict[str, str]]:
    """The step as the model takes it, and what is wrong with single fields that have no value at all."""
    policies, errors = _policies(texts)
    config, wrong = _config(texts, templates)
    if wrong:
        errors["config"] = wrong
    place = {"index": index_of(texts), "name": texts.get("name", "").strip()}
    runs = texts.get("runs", "")
    if not runs.startswith(FROM_TEMPLATE):
        return {**place, "step_type": runs.removeprefix(FROM_TYPE), "config": config, **policies}, errors
    name = runs.removeprefix(FROM_TEMPLATE)
    own = _own(texts, policies, config, templates.get(name))
    return {**place, "template": name, **own}, errors


def _policies(texts: Texts) -> tuple[dict[str, Any], dict[str, str]]:
    """What they are, and what is wrong with them."""
    cleaned, errors = _cleaned(tuple((name, texts[name]) for name in POLICIES if name in texts))
    return {name: copy(value) for name, value in cleaned.items()}, dict(errors)


@lru_cache(maxsize=100)
def _cleaned(texts: tuple[tuple[str, str], ...]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Remembered: most steps of a plan run in the same way, and a form for each takes its time."""
    form = policy_form("", dict(texts))
    errors = {name: " ".join(map(str, each)) for name, each in form.errors.items()}
    return {name: form.cleaned_data[name] for name in POLICIES if name in form.cleaned_data}, errors


def policy_form(prefix: str, texts: Mapping[str, str]) -> forms.Form:
    data = {(f"{prefix}-{name}" if prefix else name): texts[name] for name in POLICIES if name in texts}
    return PolicyForm(data, prefix=prefix or None, use_required_attribute=False)


def policy_texts(values: Mapping[str, Any]) -> Texts:
    fields = PolicyForm.base_fields
    texts = {name: as_text(fields[name].prepare_value(values[name])) for name in POLICIES}
    return {name: text for name, text in texts.items() if text}


def kind_of(texts: Mapping[str, str], templates: Templates) -> StepKind | None:
    """Whose settings it has; None if that is not known here."""
    runs = texts.get("runs", "")
    if runs.startswith(FROM_TEMPLATE):
        template = templates.get(runs.removeprefix(FROM_TEMPLATE))
        return step_types.get(template.step_type) if template else None
    return step_types.get(runs.removeprefix(FROM_TYPE))


def is_json(texts: Mapping[str, str], templates: Templates) -> bool:
    """Whether its settings are shown as JSON."""
    return bool(texts.get("runs")) and (bool(texts.get("as_json")) or kind_of(texts, templates) is None)


def turned(texts: Texts, templates: Templates) -> Texts:
    """From fields to JSON, or back if the fields can say it."""
    kind = kind_of(texts, templates)
    config, wrong = _config(texts, templates)
    if kind is None or wrong:
        return texts
    if not texts.get("as_json"):
        own = written(texts, templates)[0].get("config", {})
        return texts | {"as_json": "on", "config": json.dumps(own, indent=2, ensure_ascii=False)}
    template = templates.get(texts.get("runs", "").removeprefix(FROM_TEMPLATE))
    whole = {**(template.config if template else {}), **config} if isinstance(config, dict) else config
    drawn = settings.texts_of(kind, whole)
    if drawn is None:
        return texts
    bare = {name: text for name, text in texts.items() if not name.startswith(settings.PREFIX)}
    return bare | drawn | {"as_json": "", "config": ""}


def config_texts(step_type: str, whole: Any, own: Any) -> Texts:
    """`own` is what is shown where the fields cannot say the whole."""
    kind = step_types.get(step_type)
    texts = settings.texts_of(kind, whole) if kind else None
    if texts is None:
        return {"as_json": "on", "config": json.dumps(own, indent=2, ensure_ascii=False)}
    return texts


def _config(texts: Mapping[str, str], templates: Templates) -> tuple[Any, str]:
    kind = kind_of(texts, templates)
    if kind is not None and not texts.get("as_json"):
        return settings.values_of(kind, texts), ""
    try:
        return (strict_json.loads(texts["config"]) if texts.get("config", "").strip() else {}), ""
    except ValueError as error:
        return {}, str(error)


def _own(
    texts: Texts, policies: Mapping[str, Any], config: Any, template: TaskTemplate | None
) -> dict[str, Any]:
    """What it says instead of its template: what differs from it, and what it said before."""
    pinned = set(texts.get("own", "").split())
    usual = (template.merged({}) if template else {}) | {"run_if": Step.RunIf.SUCCESS.value}
    own = {
        name: value
        for name, value in policies.items()
        if name in pinned or (name in usual and not same_json(value, usual[name]))
    }
    if texts.get("as_json") or template is None or not isinstance(config, dict):
        return own | ({"config": config} if config else {})
    kind = step_types.get(template.step_type)
    names = [field.name for field in kind.fields] if kind else list(config)
    differing = {
        name: config.get(name)
        for name in names
        if f"config.{name}" in pinned
        or not same_json(config.get(name) or None, template.config.get(name) or None)
    }
    return own | ({"config": differing} if differing else {})


def _pinned(overrides: Mapping[str, Any]) -> list[str]:
    config = overrides.get("config", {})
    settings_of = [f"config.{name}" for name in config] if isinstance(config, dict) else []
    return [*(name for name in overrides if name not in ("template", "config")), *settings_of]
