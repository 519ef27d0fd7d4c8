"""The settings of a step as a form of its type draws them: values as texts, and texts as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms

from files import strict_json
from schedules.models.template import same_json
from schedules.registry import StepField, StepKind

from .draft import Texts
from .fields import choice, line, lines, tick

PREFIX = "config-"
# Both ways are read: see _list and _mapping.
WAYS = {
    "list": "one entry per line, or a JSON list",
    "mapping": "one “name: value” per line, or a JSON object",
}
TYPED_HINT = 'On a line, 3 is a number and "3" is text.'
EXAMPLE = "such as "


def texts_of(kind: StepKind, config: object) -> Texts | None:
    """None if the fields cannot say it: it is shown as JSON then."""
    if not isinstance(config, Mapping) or config.keys() - {field.name for field in kind.fields}:
        return None
    texts: Texts = {}
    for field in kind.fields:
        value = config.get(field.name)
        text = _text(field, value)
        if text is None or not _same(field, value, text):
            return None
        texts[f"{PREFIX}{field.name}"] = text
    return {name: text for name, text in texts.items() if text}


def defaults_of(kind: StepKind) -> Texts:
    """What the fields of a new step hold."""
    return texts_of(kind, {field.name: field.default for field in kind.fields}) or {}


def values_of(kind: StepKind, texts: Mapping[str, str]) -> dict[str, Any]:
    """What is empty is left out: the type says what becomes of it."""
    read = {field.name: value_of(field, texts.get(f"{PREFIX}{field.name}", "")) for field in kind.fields}
    return {name: value for name, value in read.items() if value is not None}


def value_of(field: StepField, text: str) -> Any:
    """None if it is empty. What no value of this kind can be stays text, for the type to complain about."""
    if field.kind == "bool":
        return bool(text)
    if not text.strip():
        return None
    match field.kind:
        case "list":
            return _list(text, text_only=field.text_only)
        case "mapping":
            return _mapping(text, text_only=field.text_only)
        case "number":
            number = _loaded(text)
            return (
                number if isinstance(number, int | float) and not isinstance(number, bool) else text.strip()
            )
    return text


def settings_form(kind: StepKind, prefix: str, texts: Mapping[str, str]) -> forms.Form:
    drawn = {f"{PREFIX}{field.name}": _drawn(field) for field in kind.fields}
    form_class: type[forms.Form] = type("SettingsForm", (forms.Form,), dict(drawn))
    data = {f"{prefix}-{name}": texts[name] for name in drawn if name in texts}
    return form_class(data, prefix=prefix, use_required_attribute=False)


def _drawn(field: StepField) -> forms.Field:
    told = _told(field)
    match field.kind:
        case "bool":
            drawn: forms.Field = tick(field.label, help=told)
        case "choice":
            drawn = choice(field.label, list(field.choices), help=told)
        case "textarea":
            drawn = lines(field.label, help=told, rows=5)
        case "list" | "mapping":
            drawn = lines(field.label, help=told, rows=3)
        case _:
            drawn = line(field.label, help=told)
    if field.required:
        drawn.widget.attrs["data-needed"] = "yes"
    return drawn


def _told(field: StepField) -> str:
    if field.kind not in WAYS:
        return _sentence(field.help)
    about, found, example = field.help.partition(EXAMPLE)
    way = f"Write {WAYS[field.kind]}{f' {found}{example}' if found else ''}."
    return " ".join(filter(None, (_sentence(about.strip(" ,")), way, "" if field.text_only else TYPED_HINT)))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _text(field: StepField, value: Any) -> str | None:
    """One of the ways to write it; None if there is none."""
    match field.kind, value:
        case "bool", bool() | None:
            return "on" if value else ""
        case _, None:
            return ""
        case "number", int() | float():
            return json.dumps(value)
        case "list", list():
            bare = "\n".join(_line(each, text_only=field.text_only) for each in value)
            return bare if same_json(_list(bare, text_only=field.text_only), value) else _json(value)
        case "mapping", dict():
            bare = "\n".join(
                f"{name}: {_line(each, text_only=field.text_only)}" for name, each in value.items()
            )
            return bare if same_json(_mapping(bare, text_only=field.text_only), value) else _json(value)
        case "textarea", str():
            return value if "\r" not in value else None
        case "text" | "choice" | "number", str():
            return value if value.isprintable() else None
    return None


def _same(field: StepField, value: Any, text: str) -> bool:
    """Whether the text means the value; all that is empty means the same."""
    return same_json(value_of(field, text) or None, value or None)


def _line(value: object, *, text_only: bool) -> str:
    """Text as it is, unless it would be read as something else."""
    is_bare = isinstance(value, str) and _entry(value, text_only=text_only) == value
    return str(value) if is_bare else json.dumps(value, ensure_ascii=False)


def _entry(text: str, *, text_only: bool) -> Any:
    text = text.strip()
    if text_only and not text.startswith('"'):
        return text
    loaded = _loaded(text)
    return text if loaded is None and text != "null" else loaded


def _list(text: str, *, text_only: bool) -> Any:
    whole = _loaded(text)
    if isinstance(whole, list):
        return whole
    return [_entry(each, text_only=text_only) for each in text.splitlines() if each.strip()]


def _mapping(text: str, *, text_only: bool) -> Any:
    """Text if a line has no colon, or a name comes twice: the type says what it expects."""
    whole = _loaded(text)
    if isinstance(whole, dict):
        return whole
    pairs = [each.partition(":") for each in text.splitlines() if each.strip()]
    if not all(colon for _, colon, _ in pairs) or len({name.strip() for name, *_ in pairs}) < len(pairs):
        return text
    return {name.strip(): _entry(value, text_only=text_only) for name, _, value in pairs}


def _loaded(text: str) -> Any:
    """What the JSON says; None if it is none."""
    try:
        return strict_json.loads(text)
    except ValueError:
        return None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
