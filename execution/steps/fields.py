"""The settings of a step type: what a form draws, and what is checked before anything is saved or run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from activities.text import clean_json

Kind = Literal["text", "textarea", "list", "mapping", "choice", "bool", "number"]


@dataclass(frozen=True)
class Field:
    """One setting of a step type: what a form draws, and what `StepType.clean` checks."""

    name: str
    label: str
    kind: Kind = "text"
    required: bool = False
    help: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    default: Any = None

    def clean(self, value: object) -> Any:
        if value is None or value in ("", [], {}):
            if self.required:
                raise ValueError(f"is required: {self.help}" if self.help else "is required")
            return self._empty() if self.default is None else self.default
        match self.kind, value:
            case "text", str():
                return _storable(value.strip())
            case ("textarea", str()) | ("list", list()) | ("mapping", dict()):
                return _storable(value)
            case "bool", bool():
                return value
            case "number", int() | float() if not isinstance(value, bool) and math.isfinite(value):
                return value
            case "choice", str() if value in dict(self.choices):
                return value
        raise ValueError(f"must be {self._wanted()}, not {shown(value)}")

    def _empty(self) -> object:
        return {"text": "", "textarea": "", "list": [], "mapping": {}, "bool": False}.get(self.kind)

    def _wanted(self) -> str:
        return {
            "list": 'a list with one entry per value, such as ["a", "b"]',
            "mapping": 'an object of names and values, such as {"name": "value"}',
            "choice": f"one of {', '.join(name for name, _ in self.choices)}",
            "bool": "true or false",
            "number": "a number",
        }.get(self.kind, "text")


def _storable(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
        clean = clean_json(value) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be stored as JSON: {error}") from None
    if not clean:
        raise ValueError("contains NUL or half a surrogate pair; remove these characters")
    return value


def shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
