"""Django form fields for the settings of a step type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms

from files import strict_json
from schedules.models.template import same_json
from schedules.registry import StepField, StepKind
from text.clean import clean_json

PREFIX = "config-"
# What people can type, by kind of setting. ListSetting and MappingSetting read both formats.
FORMATS = {
    "list": "one entry per line, or a JSON list",
    "mapping": "one “name: value” pair per line, or a JSON object",
}
TYPED_HINT = 'Without quotes, 3 is a number; with quotes, "3" is text.'
EXAMPLE = "such as "
QUIET = {"autocomplete": "off", "spellcheck": "false"}


class TextSetting(forms.CharField):
    """A setting that is typed as text; its value is None if the field is empty.

    Text that cannot be read as a value of the right kind stays a string, so that the step type reports what
    it expects.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, strip=False, **kwargs)

    def to_python(self, value: Any) -> Any:
        text = str(value or "").replace("\r\n", "\n")
        return self.read(text) if text.strip() else None

    def run_validators(self, value: Any) -> None:
        """Skip the validators of CharField, which expect a string; the step type checks the value."""

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else self.write(value)

    def read(self, text: str) -> Any:
        return text

    def write(self, value: Any) -> str:
        return _json(value)

    def can_write(self, value: Any) -> bool:
        """Return whether the widget can show a value and send it back unchanged."""
        if not isinstance(value, str):
            return value is None
        return "\r" not in value if isinstance(self.widget, forms.Textarea) else value.isprintable()


class ChoiceSetting(TextSetting):
    def can_write(self, value: Any) -> bool:
        assert isinstance(self.widget, forms.Select)
        return not value or (isinstance(value, str) and value in dict(self.widget.choices))


class NumberSetting(TextSetting):
    def read(self, text: str) -> Any:
        number = _loaded(text)
        return number if isinstance(number, int | float) and not isinstance(number, bool) else text.strip()

    def can_write(self, value: Any) -> bool:
        return isinstance(value, int | float) or super().can_write(value)


class LinesSetting(TextSetting):
    """A setting with one entry per line. With `text_only`, entries that look like numbers stay strings."""

    kind: type

    def __init__(self, *, text_only: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.text_only = text_only

    def can_write(self, value: Any) -> bool:
        return value is None or isinstance(value, self.kind)

    def read(self, text: str) -> Any:
        whole = _loaded(text)
        return whole if isinstance(whole, self.kind) else self.read_lines(text)

    def write(self, value: Any) -> str:
        lines = self.write_lines(value) if isinstance(value, self.kind) else ""
        return lines if same_json(self.read(lines), value) else _json(value, indent=2)

    def read_lines(self, text: str) -> Any:
        raise NotImplementedError

    def write_lines(self, value: Any) -> str:
        raise NotImplementedError

    def _entry(self, text: str) -> Any:
        text = text.strip()
        if self.text_only and not text.startswith('"'):
            return text
        loaded = _loaded(text)
        return text if loaded is None and text != "null" else loaded

    def _line(self, value: object) -> str:
        """Return a string as it is if `_entry` reads it back unchanged; return any other value as JSON."""
        return value if isinstance(value, str) and self._entry(value) == value else _json(value)


class ListSetting(LinesSetting):
    kind = list

    def read_lines(self, text: str) -> list[Any]:
        return [self._entry(each) for each in text.splitlines() if each.strip()]

    def write_lines(self, value: Any) -> str:
        return "\n".join(map(self._line, value))


class MappingSetting(LinesSetting):
    kind = dict

    def read_lines(self, text: str) -> Any:
        """Return a dict from name to value, or the text if a line has no colon or a name occurs twice."""
        pairs = [each.partition(":") for each in text.splitlines() if each.strip()]
        if not all(colon for _, colon, _ in pairs) or len({name.strip() for name, *_ in pairs}) < len(pairs):
            return text
        return {name.strip(): self._entry(value) for name, _, value in pairs}

    def write_lines(self, value: Any) -> str:
        return "\n".join(f"{name}: {self._line(each)}" for name, each in value.items())


def fields_of(kind: StepKind) -> dict[str, forms.Field]:
    """Return the form fields for the settings of a step type, by field name."""
    return {f"{PREFIX}{setting.name}": _field(setting) for setting in kind.fields}


def can_show(kind: StepKind, config: object) -> bool:
    """Return whether the form fields can show a config and send it back unchanged.

    A config for which this is False is shown as JSON.
    """
    fields = fields_of(kind)
    if not isinstance(config, Mapping) or any(f"{PREFIX}{name}" not in fields for name in config):
        return False
    return all(_gives_back(field, config.get(name.removeprefix(PREFIX))) for name, field in fields.items())


def _gives_back(field: forms.Field, value: Any) -> bool:
    if not isinstance(field, TextSetting):
        return value is None or isinstance(value, bool)
    # Empty values of all types mean the same, so they are compared as None. A string that a browser cannot
    # send is not equal to its cleaned value.
    return (
        field.can_write(value)
        and clean_json(value) == value
        and same_json(field.to_python(field.prepare_value(value)) or None, value or None)
    )


def _field(setting: StepField) -> forms.Field:
    # Admin pages set the width of fields by these classes.
    line = forms.TextInput(attrs={**QUIET, "class": "code vTextField"})
    lines = forms.Textarea(attrs={**QUIET, "class": "code vLargeTextField", "rows": 3})
    shown: dict[str, Any] = {"label": setting.label, "help_text": _help(setting), "initial": setting.default}
    match setting.kind:
        case "bool":
            field: forms.Field = forms.BooleanField(required=False, **shown)
        case "choice":
            field = ChoiceSetting(widget=forms.Select(choices=setting.choices), **shown)
        case "number":
            field = NumberSetting(widget=line, **shown)
        case "list":
            field = ListSetting(text_only=setting.text_only, widget=lines, **shown)
        case "mapping":
            field = MappingSetting(text_only=setting.text_only, widget=lines, **shown)
        case "textarea":
            lines.attrs["rows"] = 5
            field = TextSetting(widget=lines, **shown)
        case _:
            field = TextSetting(widget=line, **shown)
    if setting.required:
        field.widget.attrs["data-needed"] = "yes"
    return field


def _help(setting: StepField) -> str:
    if setting.kind not in FORMATS:
        return _sentence(setting.help)
    about, found, example = setting.help.partition(EXAMPLE)
    how = f"Write {FORMATS[setting.kind]}{f' {found}{example}' if found else ''}."
    return " ".join(
        filter(None, (_sentence(about.strip(" ,")), how, "" if setting.text_only else TYPED_HINT))
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _loaded(text: str) -> Any:
    """Return the value that JSON text stands for, or None if the text is not valid JSON."""
    try:
        return strict_json.loads(text)
    except ValueError:
        return None


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
