"""The settings of a step type: what a form draws, and what is checked before anything is saved or run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from activities.text import clean_json

Kind = Literal["text", "textarea", "list", "mapping", "choice", "bool", "number"]
TYPES: dict[Kind, tuple[type, ...]] = {
    "text": (str,),
    "textarea": (str,),
    "choice": (str,),
    "list": (list,),
    "mapping": (dict,),
    "bool": (bool,),
    "number": (int, float),
}


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
        if not value and not isinstance(value, (bool, int, float)):
            if self.required:
                raise ValueError(f"is required: {self.help}" if self.help else "is required")
            return self._empty() if self.default is None else self.default
        if not self._fits(value):
            raise ValueError(f"must be {self._wanted()}, not {shown(value)}")
        return _storable(value.strip() if self.kind == "text" and isinstance(value, str) else value)

    def _fits(self, value: object) -> bool:
        if not isinstance(value, TYPES[self.kind]):
            return False
        if self.kind == "number":
            return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
        return self.kind != "choice" or value in dict(self.choices)

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
        is_clean = clean_json(value) == value
        if not isinstance(value, str):
            json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"cannot be stored as JSON: {error}") from None
    if not is_clean:
        raise ValueError("contains NUL or half a surrogate pair; remove these characters")
    return value


def shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
