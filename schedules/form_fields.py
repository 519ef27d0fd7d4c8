"""Form fields that read what people type: lists, durations, times, tags, notes and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import capfirst

from files import strict_json

from .spec import SpecError
from .spec.intervals import seconds_of
from .spec.moments import clock_reading
from .spec.wall_calendar import FIRST, LAST
from .spec.wording import duration
from .spec_text import QUOTED, quoted, unquoted

_MEMO = re.compile(rf"(?P<name>{QUOTED}|[^:]*):(?P<text>.*)")


def code_lines(rows: int) -> forms.Textarea:
    return forms.Textarea(
        attrs={"rows": rows, "class": "vLargeTextField code", "spellcheck": "false", "wrap": "off"}
    )


class Lines(forms.CharField):
    """A text area with one entry per line; `grow` fits its height to its content."""

    def __init__(self, *, rows: int = 2, **kwargs: Any) -> None:
        super().__init__(required=False, widget=code_lines(rows), **kwargs)

    def grow(self, text: str) -> None:
        rows = self.widget.attrs["rows"]
        self.widget.attrs["rows"] = min(max(text.count("\n") + 2, rows), 20) if text else rows


class Words(Lines):
    """A list of strings, typed one per line."""

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        words = value if isinstance(value, list) else str(value or "").splitlines()
        return [word.strip() for word in words if word.strip()]

    def run_validators(self, value: Any) -> None:
        """Skip the validators of CharField, which expect a string, not parsed values."""


class Seconds(forms.IntegerField):
    """A duration in seconds, which is shown and typed as text such as 1h30m."""

    def __init__(self, **kwargs: Any) -> None:
        wrong = "Enter a duration such as 90s, 15m, 1h30m or 2d, or a whole number of seconds."
        super().__init__(**{"error_messages": {"invalid": wrong}} | kwargs)

    def prepare_value(self, value: Any) -> Any:
        return duration(value) if isinstance(value, int) and value >= 0 else value

    def to_python(self, value: Any) -> int | None:
        seconds = seconds_of(value) if isinstance(value, str) else None
        return super().to_python(value) if seconds is None else seconds


class WallTime(forms.Field):
    """A date and time as typed. Without a UTC offset, the value is naive: the caller sets the time zone."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")

    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        try:
            return clock_reading("", str(value).strip())
        except SpecError:
            allowed = "such as 2026-12-01T09:00, or with a UTC offset, such as 2026-12-01T09:00:00Z"
            raise ValidationError(
                f"Enter a date and time between {FIRST.year} and {LAST.year}, {allowed}."
            ) from None


class Tags(forms.Field):
    widget = forms.TextInput(attrs={"class": "vTextField"})

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:
        words = (word.strip() for word in str(value or "").split(","))
        return sorted({word for word in words if word})


class Memo(forms.Field):
    """A memo: one “name: text” per line. Names and texts with special characters are put in quotes."""

    widget = code_lines(3)

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
            return json.dumps(value)
        return "\n".join(f"{_plain(name, ':')}: {_plain(text)}".strip() for name, text in value.items())

    def to_python(self, value: Any) -> Any:
        text = str(value or "").strip()
        if text.startswith(("{", "[")):
            return _loaded(text)
        memo: dict[str, str] = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            parts = _MEMO.fullmatch(line)
            if parts is None:
                raise ValidationError(f"“{line[:60]}” has no colon: write each line as “name: text”.")
            name = unquoted(parts["name"])
            if name in memo:
                raise ValidationError(f"The name “{name[:60]}” is used twice: use each name only once.")
            memo[name] = unquoted(parts["text"])
        return memo


class JSONText(forms.CharField):
    """A JSON object of settings. Text that is not valid JSON is shown again as it was typed."""

    widget = forms.Textarea(attrs={"rows": 6, "class": "vLargeTextField code", "spellcheck": "false"})

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        if value is None:
            return {}
        if not isinstance(value, str):
            return value
        return _loaded(value) if value.strip() else {}

    def run_validators(self, value: Any) -> None:
        """Skip the validators of CharField, which expect a string, not parsed values."""


def _loaded(text: str) -> Any:
    try:
        return strict_json.loads(text)
    except ValueError as error:
        raise ValidationError(f"{capfirst(str(error))}.") from None


def _plain(text: str, *marks: str) -> str:
    is_plain = text == text.strip() and text.isprintable() and not text.startswith(('"', "{", "["))
    return text if is_plain and not any(mark in text for mark in marks) else quoted(text)
